"""The tables for SQLAlchemy's Core; migrations/schema/ creates them.

Every table that belongs to a session has `session_key` first in every key and
`tenant_id` beside it for row-level security.
"""

from storage.tables.access import api_key as api_key
from storage.tables.access import audit_event as audit_event
from storage.tables.access import audit_head as audit_head
from storage.tables.access import source_trust as source_trust
from storage.tables.calls import budget as budget
from storage.tables.calls import call as call
from storage.tables.calls import call_sum as call_sum
from storage.tables.calls import intent as intent
from storage.tables.calls import spend as spend
from storage.tables.calls import spend_sum as spend_sum
from storage.tables.calls import tenant_budget as tenant_budget
from storage.tables.calls import tenant_spend_sum as tenant_spend_sum
from storage.tables.common import APP_ROLE as APP_ROLE
from storage.tables.common import SWEEPER_ROLE as SWEEPER_ROLE
from storage.tables.common import metadata as metadata
from storage.tables.erasures import erasure as erasure
from storage.tables.erasures import tenant_key as tenant_key
from storage.tables.jobs import answer as answer
from storage.tables.jobs import answer_rating as answer_rating
from storage.tables.jobs import answer_text as answer_text
from storage.tables.jobs import claim as claim
from storage.tables.jobs import operation as operation
from storage.tables.jobs import schema_draft as schema_draft
from storage.tables.jobs import trajectory_event as trajectory_event
from storage.tables.jobs import wanted as wanted
from storage.tables.jobs import worker as worker
from storage.tables.log import chunk as chunk
from storage.tables.log import deployment as deployment
from storage.tables.log import model_condition as model_condition
from storage.tables.log import process as process
from storage.tables.log import producer as producer
from storage.tables.log import removal as removal
from storage.tables.log import request as request
from storage.tables.log import session as session
from storage.tables.log import tenant as tenant
from storage.tables.log import trace_context as trace_context
from storage.tables.memories import dead_letter as dead_letter
from storage.tables.memories import memory as memory
from storage.tables.memories import revision as revision
from storage.tables.prism import amendment as amendment
from storage.tables.prism import prism_base as prism_base
from storage.tables.prism import prism_snapshot as prism_snapshot
from storage.tables.prism import prism_value as prism_value
from storage.tables.prism import rejection as rejection
from storage.tables.search import chunk_vector as chunk_vector
from storage.tables.search import chunk_word as chunk_word
from storage.tables.search import memory_entry as memory_entry
from storage.tables.search import posting_block as posting_block
from storage.tables.search import posting_list as posting_list
from storage.tables.trees import tree_node as tree_node
from storage.tables.vectors import state_levels as state_levels
from storage.tables.vectors import state_vector as state_vector
