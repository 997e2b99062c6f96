"""What fits, and why: layouts, the memory ledger, capacity, verdict."""

from k3stack.plan.assess import Capacity
from k3stack.plan.layout import KvDtype, Layout, StateDtype, Workload
from k3stack.plan.ledger import Ledger, Line
from k3stack.plan.plan import Plan, Verdict, make_plan
from k3stack.plan.reserves import Reserves

__all__ = [
    "Capacity",
    "KvDtype",
    "Layout",
    "Ledger",
    "Line",
    "Plan",
    "Reserves",
    "StateDtype",
    "Verdict",
    "Workload",
    "make_plan",
]
