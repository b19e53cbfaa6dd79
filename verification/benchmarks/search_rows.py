"""A large log for the benchmark `search`: synthetic words and vectors, written straight into
the tables.

Texts and vectors are drawn from a pool, since what is searched is one session at a time and
making a million of each would take longer than everything else.
"""

import math
import random

import psycopg

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from storage.search.setup import WORDS_INDEX

MODEL = "bench/fixed"
#: Numbers of a vector.
SIZE = 128
#: Different texts, each with a vector; a session has each at most once when it is smaller.
POOL = 5000
WORDS_A_CHUNK = 80
#: Written by one statement.
SESSIONS_AT_ONCE = 20

_BEGINNINGS = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
_ENDINGS = [
    a + b for a in ("ran", "ton", "lim", "ver", "sol", "gar", "pex") for b in ("", "ka", "mo")
]
VOCABULARY = [
    first + second + ending
    for first in _BEGINNINGS
    for second in ("", "lo", "nu")
    for ending in _ENDINGS
]
#: As in real texts, the second word occurs half as often as the first, and so on.
WEIGHTS = [1 / rank for rank in range(1, len(VOCABULARY) + 1)]

_SESSIONS = """
INSERT INTO session (session_key, tenant_id, name, head, indexed_position, embedded_position,
    embedding_model)
SELECT key, %(tenant)s, name, %(chunks)s, %(chunks)s, %(chunks)s, %(model)s
FROM unnest(%(keys)s::uuid[], %(names)s::text[]) AS t (key, name)
"""
_PRODUCERS = """
INSERT INTO producer (session_key, producer_id, tenant_id, epoch, last_sequence)
SELECT key, 'p', %(tenant)s, 0, %(chunks)s FROM unnest(%(keys)s::uuid[]) AS t (key)
"""
_FROM = """
FROM unnest(%(keys)s::uuid[], %(numbers)s::integer[]) AS t (key, number)
CROSS JOIN generate_series(1, %(chunks)s) AS position
JOIN pool ON pool.number = (position * 7919 + t.number * 104729) %% %(pool)s
"""
_CHUNKS = f"""
INSERT INTO chunk (session_key, position, tenant_id, producer_id, producer_sequence, kind, role,
    text, observation, thought, action, digest)
SELECT key, position, %(tenant)s, 'p', position, 'text', '', pool.text, '', '', '', '' {_FROM}
"""
_WORDS = f"""
INSERT INTO chunk_word (session_key, position, tenant_id, words, length)
SELECT key, position, %(tenant)s, pool.words, {WORDS_A_CHUNK} {_FROM}
"""
_VECTORS = f"""
INSERT INTO chunk_vector (session_key, position, part, tenant_id, model, from_character,
    to_character, embedding)
SELECT key, position, 0, %(tenant)s, %(model)s, 0, length(pool.text), pool.embedding {_FROM}
"""


def by_chance(chance: random.Random) -> list[float]:
    """Returns a vector of length 1."""
    held = [chance.gauss(0, 1) for _ in range(SIZE)]
    length = math.sqrt(math.fsum(one * one for one in held))
    return [one / length for one in held]


def query_by_chance(chance: random.Random, words: int) -> str:
    """Returns a query of different words, as often as texts have them."""
    return " ".join(dict.fromkeys(chance.choices(VOCABULARY, WEIGHTS, k=words)))


def fill(superuser_url: str, sessions: int, chunks: int) -> None:
    """Makes the sessions `s0`, `s1` …, with all of their chunks in the index."""
    chance = random.Random(1)
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        # Foreign keys hold by construction; to check each row takes most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute(f"DROP INDEX IF EXISTS {WORDS_INDEX}")
        _make_pool(connection, chance)
        for first in range(0, sessions, SESSIONS_AT_ONCE):
            numbers = range(first, min(first + SESSIONS_AT_ONCE, sessions))
            names = [f"s{number}" for number in numbers]
            values = {
                "tenant": DEFAULT_TENANT,
                "keys": [session_key(DEFAULT_TENANT, name) for name in names],
                "names": names,
                "numbers": list(numbers),
                "chunks": chunks,
                "model": MODEL,
                "pool": POOL,
            }
            for statement in (_SESSIONS, _PRODUCERS, _CHUNKS, _WORDS, _VECTORS):
                connection.execute(statement, values)


def finish(superuser_url: str) -> None:
    """What autovacuum does in a database that lives longer."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE session, chunk, chunk_word, chunk_vector")
        connection.execute("CHECKPOINT")


def _make_pool(connection: "psycopg.Connection[tuple[object, ...]]", chance: random.Random) -> None:
    connection.execute(
        "CREATE TEMP TABLE pool (number integer PRIMARY KEY, text text, words tsvector,"
        " embedding real[])"
    )
    with connection.cursor().copy("COPY pool (number, text, embedding) FROM STDIN") as copy:
        for number in range(POOL):
            text = " ".join(chance.choices(VOCABULARY, WEIGHTS, k=WORDS_A_CHUNK))
            copy.write_row((number, text, by_chance(chance)))
    connection.execute("UPDATE pool SET words = to_tsvector('english', text)")
    connection.execute("ANALYZE pool")
