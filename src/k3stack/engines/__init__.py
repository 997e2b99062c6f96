"""What each engine accepts and needs: rules with source and date."""
