"""What fits, and why: layouts, the memory ledger, capacity, verdict."""

from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.plan.ledger import Ledger, Line
from k3stack.plan.plan import Capacity, Plan, Verdict, make_plan

__all__ = ["Capacity", "KvDtype", "Layout", "Ledger", "Line", "Plan", "Verdict", "Workload", "make_plan"]
