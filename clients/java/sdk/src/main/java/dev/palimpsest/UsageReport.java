package dev.palimpsest;

import dev.palimpsest.v1.ListUsageResponse;
import dev.palimpsest.v1.Usage;
import java.util.List;

/**
 * The usage of model calls.
 *
 * @param total of all lines
 * @param lines one for each group
 */
public record UsageReport(Usage total, List<ListUsageResponse.Line> lines) {}
