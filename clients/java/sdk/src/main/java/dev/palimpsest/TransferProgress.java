package dev.palimpsest;

/**
 * How far an export or an import is.
 *
 * @param bytes of lines, from the beginning of the file
 * @param lines with the header
 */
public record TransferProgress(long bytes, long lines) {}
