"""The planner: enumerate valid parallel plans of a model, drop those that do not fit, rank the rest by step time.

`plan_request` settles what a user asks for, `rank_plans` answers it, and `answer_document` makes the document that
plan.json holds.
"""

from nadi.studies.planner.answer import answer_document, merge_shards, read_answers
from nadi.studies.planner.planning import PlanRequest, plan_request, rank_plans, sweep_requests
from nadi.studies.planner.report import plan_page, plan_table
from nadi.studies.planner.search import ProgressFile
from nadi.studies.planner.space import MemoryReserve
