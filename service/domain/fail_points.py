"""Fail points: the places where a process may be made to fail on purpose.

One registry of all of them, so that a test can go through every boundary of the service
and nobody has to guess which there are. Code says `reach(FailPoint.X)` where it passes X;
that does nothing unless `service.fail_points` has been told to act (etcd's gofail does the
same in its robustness tests).
"""

from collections.abc import Callable
from enum import Enum


class FailPoint(Enum):
    """Every place, by the name that a schedule of faults knows it by.

    "Before the commit" is within a transaction: what fails there undoes it. Where nothing is
    said of a transaction, none is open. Before a statement, or a round trip, is also behind
    the one that came before it.
    """

    # Opening a producer.
    #: Its transaction is open; nothing is locked.
    OPEN_BEGUN = "open.begun"
    #: The session is locked.
    OPEN_LOCKED = "open.locked"
    #: The producer's row is written, and not read back.
    OPEN_RAISED = "open.raised"
    #: Everything is written; before the commit.
    OPEN_WRITTEN = "open.written"
    #: Committed; the producer is not told where it stands.
    OPENED = "open.committed"

    # Appending, with the session locked.
    #: A group commit locks its sessions.
    APPEND_BEFORE_LOCK = "append.before_lock"
    #: They are locked; before what was sent again is read.
    APPEND_LOCKED = "append.locked"
    #: Every chunk has its position; before anything is written.
    APPEND_PLANNED = "append.planned"
    #: Chunks, heads and producers are written; before the commit.
    APPEND_WRITTEN = "append.written"
    #: Committed; before the hints.
    APPEND_COMMITTED = "append.committed"

    # Appending in one round trip.
    #: The write of a small group is sent.
    APPEND_BEFORE_SWIFT = "append.before_swift"
    #: It came back: written and committed, or nothing is.
    APPEND_SWIFTLY_WRITTEN = "append.swiftly_written"

    # Acks.
    #: A group is durable; nobody who waits for it knows.
    APPEND_BEFORE_ACK = "append.before_ack"
    #: A batch that was sent alone is durable; before the reply.
    APPEND_BEFORE_REPLY = "append.before_reply"
    #: A stream is about to send an ack.
    ACK_BEFORE = "ack.before"
    #: It is sent.
    ACK_SENT = "ack.sent"

    # Hints, from whoever made work to the queue.
    #: A batch is taken off the list, and with the process it is lost.
    HINTS_TAKEN = "hints.taken"
    #: It is passed on.
    HINTS_PASSED = "hints.passed"
    #: Workers are about to be told.
    HINT_BEFORE = "hint.before"
    #: They are.
    HINT_SENT = "hint.sent"

    # Dispatch.
    #: A worker is about to give back what is done, and to take more.
    TAKE_BEFORE = "take.before"
    #: It has taken items, and not begun them.
    TAKEN = "take.taken"
    #: The worker begins with the item.
    WORK_BEGUN = "work.begun"
    #: It is done with it; nobody else may take it yet.
    WORK_ENDED = "work.ended"
    #: What dead workers have in hand is about to be freed.
    SWEEP_BEFORE = "sweep.before"
    #: They are.
    SWEPT = "sweep.swept"

    # Taking a memory, of any kind.
    #: The statement that raises the epoch is sent.
    CLAIM_BEFORE = "claim.before"
    #: It came back; before the commit.
    CLAIM_TAKEN = "claim.taken"

    # Calls: the right to make one.
    #: The gateway knows the route; before the intent.
    CALL_WANTED = "call.wanted"
    #: Before the statement that takes the right.
    INTENT_BEFORE = "intent.before"
    #: The intent is written; before the commit.
    INTENT_WRITTEN = "intent.written"
    #: Committed; before the order.
    INTENT_COMMITTED = "intent.committed"

    # Calls: the order, from the worker to the caller's process and back.
    #: The right is there; nothing is ordered.
    ORDER_BEFORE = "order.before"
    #: The worker listens for its outcome; nothing is written to the socket.
    ORDER_CONNECTED = "order.connected"
    #: It is written.
    ORDER_SENT = "order.sent"
    #: The caller has read it.
    ORDER_RECEIVED = "order.received"
    #: The caller knows the outcome, and it is stored; before it says so.
    OUTCOME_BEFORE = "outcome.before"
    #: It is written to the socket.
    OUTCOME_SENT = "outcome.sent"
    #: The worker has read it.
    REPLY_RECEIVED = "reply.received"
    #: The gateway has the reply of a call that was made now.
    REPLY_BACK = "reply.back"

    # Calls: the caller.
    #: The model is about to be asked.
    MODEL_BEFORE = "model.before"
    #: It has replied, and is paid.
    MODEL_REPLIED = "model.replied"
    #: The outcome is known; before it is recorded.
    CALL_MADE = "call.made"
    #: The transaction that records it is sent.
    RECORD_BEFORE = "record.before"
    #: It is committed.
    RECORD_WRITTEN = "record.written"
    #: Committed; before the reply is copied to the index.
    CALL_RECORDED = "call.recorded"
    #: It is copied.
    CALL_COPIED = "call.copied"
    #: A lease is about to be renewed.
    RENEWAL_BEFORE = "renewal.before"
    #: It is.
    RENEWED = "renewal.committed"

    # A revision of a tree or a state memory, within its transaction.
    #: The compare-and-set of the cursor is sent.
    ADVANCE_BEFORE = "advance.before"
    #: The cursor is moved; before the revision's row.
    ADVANCE_MOVED = "advance.moved"
    #: The revision's row is written; before what it brings.
    ADVANCE_WRITTEN = "advance.written"

    # A revision of a PRISM memory.
    #: The statement that writes all of it is sent; of a step, fold or consolidation the whole
    #: transaction.
    REVISION_BEFORE = "revision.before"
    #: It came back.
    REVISION_WRITTEN = "revision.written"

    # A step of a PRISM memory.
    #: The memory is claimed and read; before the commit.
    STEP_READ = "step.read"
    #: Committed: it is in this worker's hands.
    STEP_TAKEN = "step.taken"
    #: Chunks are read; no transaction is open.
    STEP_CHUNKS_READ = "step.chunks_read"
    #: All replies of the step are there; before its transaction.
    STEP_THOUGHT = "step.thought"
    #: Committed.
    COMMITTED = "commit.committed"
    #: The memory is at the head, which is locked; before it is left.
    REST_BEFORE = "rest.before"
    #: It is left; before the commit.
    REST_WRITTEN = "rest.written"
    #: Committed.
    RESTED = "rest.committed"

    # Folds and consolidations.
    #: A fold is due; nothing is written.
    FOLD_DUE = "fold.due"
    #: It is committed.
    FOLDED = "fold.committed"
    #: All its replies are there; before its transaction.
    CONSOLIDATION_THOUGHT = "consolidation.thought"
    #: It is committed.
    CONSOLIDATED = "consolidation.committed"

    # Changes by hand.
    #: The memory is locked for an edit.
    EDIT_LOCKED = "edit.locked"
    #: The revision of a change by hand is written; before the commit.
    EDIT_WRITTEN = "edit.written"
    #: An edit is committed; before the hint.
    EDIT_COMMITTED = "edit.committed"
    #: The hint is given; before the answer.
    EDIT_WOKEN = "edit.woken"
    #: A rollback is committed; before the hint.
    ROLLED_BACK = "rollback.committed"
    #: A consolidation is asked for; before the commit.
    CONSOLIDATION_WANTED = "consolidation.wanted"
    #: Committed; before the hint.
    CONSOLIDATION_ASKED = "consolidation.asked"

    # A group of nodes of a tree, and its seal.
    #: The tree is claimed and read, and that is committed.
    TREE_TAKEN = "tree.taken"
    #: A summary is made; it waits to be stored in its order.
    NODE_MADE = "node.made"
    #: The transaction of a group is open.
    STORE_BEGUN = "store.begun"
    #: The session's head is locked: was that all?
    STORE_HEAD_LOCKED = "store.head_locked"
    #: The revision is written; before its nodes.
    NODES_BEFORE = "nodes.before"
    #: The nodes are written.
    NODES_WRITTEN = "nodes.written"
    #: The group is committed.
    STORED = "store.committed"
    #: A tree without new nodes is left at the head, and that is committed.
    TREE_RESTED = "tree.rested"
    #: The transaction of a seal is open.
    SEAL_BEGUN = "seal.begun"
    #: The last revision is written; before the commit.
    SEAL_WRITTEN = "seal.written"
    #: Committed.
    SEALED = "seal.committed"

    # A compression.
    #: A state memory was looked at, in nobody's hands.
    STATE_LOOKED = "state.looked"
    #: It is claimed and read, and that is committed.
    STATE_TAKEN = "state.taken"
    #: The vectors of a full level are read.
    EPISODE_READ = "episode.read"
    #: All replies are there; before the transaction.
    COMPRESSED = "state.thought"
    #: The transaction of a vector is open.
    STATE_BEGUN = "state.begun"
    #: What is in use is written; before the vector.
    LEVELS_WRITTEN = "levels.written"
    #: The vector is written.
    VECTOR_WRITTEN = "vector.written"
    #: Committed.
    STATE_COMMITTED = "state.committed"
    #: The memory is about to be left.
    STATE_REST_BEFORE = "state.before_rest"
    #: It is left, unless something came; committed.
    STATE_RESTED = "state.rested"

    # Steps that fail.
    #: The transaction that puts a step off is open.
    BACK_OFF_BEGUN = "back_off.begun"
    #: It is put off; before the commit.
    BACK_OFF_WRITTEN = "back_off.written"
    #: Committed.
    BACKED_OFF = "back_off.committed"
    #: The transaction that stops a memory is open.
    STALL_BEGUN = "stall.begun"
    #: It is stopped; before the dead letter.
    STALL_WRITTEN = "stall.written"
    #: The dead letter is written; before the commit.
    DEAD_LETTER_WRITTEN = "stall.letter_written"
    #: Committed.
    STALLED = "stall.committed"
    #: A stopped memory is let go on; before the commit.
    RETRY_WRITTEN = "retry.written"
    #: Committed; before the hint.
    RETRIED = "retry.committed"
    #: Many of them are; before the commit.
    RETRY_ALL_WRITTEN = "retry_all.written"
    #: Committed; before the hints.
    RETRIED_ALL = "retry_all.committed"

    # Work that waits for its model.
    #: A memory is put off until its model replies; before the commit.
    WAIT_WRITTEN = "wait.written"
    #: Committed.
    WAITING = "wait.committed"
    #: A condition of a model is noted, and that is committed.
    CONDITION_NOTED = "condition.noted"
    #: The probe of a condition is taken, and that is committed; before the call.
    PROBE_TAKEN = "condition.probe_taken"
    #: A condition that has passed is forgotten, and that is committed.
    CONDITION_GONE = "condition.gone"
    #: What waited may go on; before the commit.
    WAKE_WRITTEN = "wake.written"
    #: Committed; before the hints.
    WOKEN = "wake.committed"
    #: A memory has another model; before the commit.
    MODEL_CHANGED = "model_change.written"
    #: Committed; before the hint.
    MODEL_CHANGE_COMMITTED = "model_change.committed"

    # Questions and their answers.
    #: A question is stored; before the commit.
    ASK_WRITTEN = "ask.written"
    #: Committed; before the hint.
    ASKED = "ask.committed"
    #: A worker has read what it is to make.
    WANTED_READ = "answer.read"
    #: An event of the reader is written; before the commit.
    EVENT_WRITTEN = "event.written"
    #: Committed.
    EVENT_COMMITTED = "event.committed"
    #: The answer is made; nothing of it is stored.
    ANSWER_MADE = "answer.made"
    #: It is stored; before the commit.
    ANSWER_WRITTEN = "answer.written"
    #: Committed.
    ANSWERED = "answer.committed"
    #: A failed try is counted; before the commit.
    PUT_OFF_WRITTEN = "put_off.written"
    #: Committed.
    PUT_OFF = "put_off.committed"

    # The index of chunks.
    #: It is known what a session lacks.
    INDEX_LOOKED = "index.looked"
    #: Words of a batch are written; before the commit.
    WORDS_WRITTEN = "words.written"
    #: Committed.
    WORDS_COMMITTED = "words.committed"
    #: The chunks of a batch of vectors are read.
    EMBED_READ = "vectors.chunks_read"
    #: Their vectors are made; nothing is written.
    EMBEDDED = "vectors.made"
    #: Vectors that were there are gone; before the new ones.
    VECTORS_DROPPED = "vectors.dropped"
    #: The new ones are written; before the commit.
    VECTORS_WRITTEN = "vectors.written"
    #: Committed.
    VECTORS_COMMITTED = "vectors.committed"
    #: A session lacks nothing; before the commit of that.
    INDEX_SETTLED = "index.settled"


#: What is done at a point; None, as in production, is nothing at all.
_act: Callable[[FailPoint], None] | None = None


def reach(point: FailPoint) -> None:
    """Says that the process is at `point`, and fails there if it is to."""
    if _act is not None:
        _act(point)


def act(what: Callable[[FailPoint], None] | None) -> None:
    """Does `what` at every point from now on; None: nothing any more."""
    global _act
    _act = what
