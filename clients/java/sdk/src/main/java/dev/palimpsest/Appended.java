package dev.palimpsest;

import dev.palimpsest.v1.PositionRange;

/**
 * What {@link Session#append} has stored.
 *
 * @param positions in the log
 * @param readToken makes a later read wait until a memory has read it
 * @param requestId the same chunks under this id are stored once
 */
public record Appended(PositionRange positions, String readToken, String requestId) {}
