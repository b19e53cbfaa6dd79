"""The index's functions inside Redis: the same as the plain commands, in less time.

`pc_lpm` finds, for each deployment, the deepest boundary that is known there; `pc_touch`
writes boundaries and keeps the hash small. Servers that refuse functions (managed ones,
users without the right) get the plain commands of `storage.calls.prefix_index`, with the same
answers.
"""

from enum import Enum

import structlog
from redis.exceptions import RedisError, ResponseError

from storage.engine.redis_link import RedisLink

_log = structlog.get_logger("palimpsest.prefix_cache")

#: Of the functions' arguments and answers. Raise it with every change of the text below.
VERSION = 1

LIBRARY = """#!lua name=palimpsest
-- Fields are an id of 8 bytes and a place of 2; values are tokens and Unix seconds, 4 bytes each.
local VERSION = @VERSION@

local function other_version()
    return redis.error_reply('PCVERSION ' .. VERSION)
end

-- Arguments: version, the second that is too old, places, ids. For each place: depth and
-- value of the deepest fresh boundary, depth and value of the deepest one; depth 0 is none.
local function lpm(keys, args)
    if tonumber(args[1]) ~= VERSION then return other_version() end
    local since, places, ids = tonumber(args[2]), args[3], args[4]
    local count, answer = #places / 2, {}
    for at = 1, count * 4, 2 do
        answer[at], answer[at + 1] = 0, ''
    end
    local open = count
    for depth = #ids / 8, 1, -1 do
        local id = string.sub(ids, depth * 8 - 7, depth * 8)
        for place = 1, count do
            local at = place * 4 - 3
            if answer[at] == 0 then
                local field = id .. string.sub(places, place * 2 - 1, place * 2)
                local value = redis.call('HGET', keys[1], field)
                if value and #value == 8 then
                    if answer[at + 2] == 0 then
                        answer[at + 2], answer[at + 3] = depth, value
                    end
                    local a, b, c, d = string.byte(value, 5, 8)
                    if ((a * 256 + b) * 256 + c) * 256 + d > since then
                        answer[at], answer[at + 1] = depth, value
                        open = open - 1
                    end
                end
            end
        end
        if open == 0 then break end
    end
    return answer
end

-- Arguments: version, seconds to live, most fields, fields to keep of too many, then
-- fields and values.
local function touch(keys, args)
    if tonumber(args[1]) ~= VERSION then return other_version() end
    local key, written = keys[1], {}
    for at = 5, #args, 2 do
        redis.call('HSET', key, args[at], args[at + 1])
        written[args[at]] = true
    end
    redis.call('EXPIRE', key, args[2])
    local size = redis.call('HLEN', key)
    if size <= tonumber(args[3]) then return size end
    local all, old = redis.call('HGETALL', key), {}
    for at = 1, #all, 2 do
        local value, touched = all[at + 1], 0
        if #value == 8 then
            local a, b, c, d = string.byte(value, 5, 8)
            touched = ((a * 256 + b) * 256 + c) * 256 + d
        end
        if not written[all[at]] then
            old[#old + 1] = {touched, at, all[at]}
        end
    end
    table.sort(old, function(one, other)
        if one[1] ~= other[1] then return one[1] < other[1] end
        return one[2] < other[2]
    end)
    for at = 1, math.min(#old, size - tonumber(args[4])) do
        redis.call('HDEL', key, old[at][3])
    end
    return redis.call('HLEN', key)
end

redis.register_function{function_name='pc_lpm', callback=lpm, flags={'no-writes'}}
redis.register_function{function_name='pc_touch', callback=touch}
""".replace("@VERSION@", str(VERSION))


class Verdict(Enum):
    """What the replies to calls of functions mean."""

    FINE = "fine"
    #: They were not there, and are now: call again.
    AGAIN = "again"
    #: They cannot be had: use plain commands.
    REFUSED = "refused"


class Functions:
    """Whether the server has our functions, and how it gets them."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        #: False when they were refused once; asked once a process.
        self.usable = True

    async def judge(self, replies: list[object]) -> Verdict:
        """Looks at the replies to FCALLs; loads the functions where they are missing."""
        faults = [one for one in replies if isinstance(one, RedisError)]
        if not faults:
            return Verdict.FINE
        if any(_is_missing(one) for one in faults):
            loaded = await self._link.send_everywhere("FUNCTION", "LOAD", "REPLACE", LIBRARY)
            if loaded is None:
                # Gone meanwhile, which says nothing about functions.
                return Verdict.REFUSED
            refusals = [one for one in loaded if isinstance(one, RedisError)]
            return self._give_up(refusals[0]) if refusals else Verdict.AGAIN
        told = [one for one in faults if _speaks_of_functions(one)]
        return self._give_up(told[0]) if told else Verdict.FINE

    def _give_up(self, cause: RedisError) -> Verdict:
        self.usable = False
        _log.info("redis takes no functions; plain commands serve", cause=str(cause))
        return Verdict.REFUSED


def _is_missing(fault: RedisError) -> bool:
    """Whether the functions are not there, or are those of an older release.

    A newer release's are left alone: its processes need them, and plain commands do.
    """
    said = str(fault)
    if "PCVERSION" in said:
        return int(said.rpartition(" ")[2]) < VERSION
    return "function not found" in said.lower()


def _speaks_of_functions(fault: RedisError) -> bool:
    said = str(fault).lower()
    known = ("pcversion", "function not found", "unknown command", "permission", "noperm")
    return isinstance(fault, ResponseError) and any(one in said for one in known)
