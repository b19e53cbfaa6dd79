package dev.palimpsest;

import dev.palimpsest.v1.PositionRange;
import java.util.Optional;

/**
 * What {@link Session#remember} has stored.
 *
 * @param positions in the log; empty when there was nothing to store
 * @param readToken makes a later read wait until a memory has read it
 * @param requestId the same messages under this id are stored once
 * @param chunks how many chunks the messages became
 * @param skipped messages of which nothing is kept: instructions, and empty ones
 */
public record Remembered(
    Optional<PositionRange> positions,
    String readToken,
    String requestId,
    int chunks,
    int skipped) {}
