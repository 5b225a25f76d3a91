"""The order of waiting rows: small policies behind one face, and what puts them together."""

from radixrt.scheduler.policies.base import Entry, Policy, View
from radixrt.scheduler.policies.make import PolicyOptions, make_policy
from radixrt.scheduler.policies.neighbours import Neighbours

__all__ = ["Entry", "Neighbours", "Policy", "PolicyOptions", "View", "make_policy"]
