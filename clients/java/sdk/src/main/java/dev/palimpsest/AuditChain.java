package dev.palimpsest;

import com.google.protobuf.ByteString;
import com.google.protobuf.Value;
import dev.palimpsest.v1.AuditEvent;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * Checks that an audit log is unchanged: the digest of each event covers it, and the digest before
 * it. The events are those of {@link Access#auditEvents} without filters, oldest first.
 *
 * <pre>{@code
 * AuditChain chain = new AuditChain();
 * boolean isIntact = access.auditEvents(request -> {}).allMatch(chain::add)
 *     && chain.digest().equals(access.auditHead().digest());
 * }</pre>
 */
public final class AuditChain {

  /**
   * The end of an audit log. Kept elsewhere, it shows later that nothing was cut off.
   *
   * @param sequence of the newest event; 0 without one
   */
  public record Head(long sequence, ByteString digest) {}

  private static final DateTimeFormatter MICROSECONDS =
      DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").withZone(ZoneOffset.UTC);

  private long sequence;
  private ByteString digest = ByteString.copyFrom(new byte[32]);

  /** Begins before the first event. */
  public AuditChain() {}

  /** Adds the next event; returns whether it is unchanged, and follows the one before it. */
  public boolean add(AuditEvent event) {
    boolean follows = event.getSequence() == sequence + 1 && event.getDigest().equals(of(event));
    sequence = event.getSequence();
    digest = event.getDigest();
    return follows;
  }

  /** Returns the sequence of the last event; 0 before the first. */
  public long sequence() {
    return sequence;
  }

  /** Returns the digest of the last event. */
  public ByteString digest() {
    return digest;
  }

  private ByteString of(AuditEvent event) {
    try {
      MessageDigest sha256 = MessageDigest.getInstance("SHA-256");
      sha256.update(digest.toByteArray());
      return ByteString.copyFrom(sha256.digest(canonical(event).getBytes(StandardCharsets.UTF_8)));
    } catch (NoSuchAlgorithmException error) {
      throw new AssertionError("every Java has SHA-256", error);
    }
  }

  /** Returns an event as JSON with sorted keys and without blanks. */
  static String canonical(AuditEvent event) {
    Instant at =
        Instant.ofEpochSecond(event.getOccurredAt().getSeconds(), event.getOccurredAt().getNanos());
    Map<String, String> details = new TreeMap<>();
    event.getDetails().getFieldsMap().forEach((name, value) -> details.put(name, json(value)));
    return object(
        new TreeMap<>(
            Map.of(
                "action", quoted(event.getAction()),
                "details", object(details),
                "memory", quoted(event.getMemory()),
                "occurred_at", quoted(MICROSECONDS.format(at)),
                "principal", quoted(event.getPrincipal()),
                "sequence", String.valueOf(event.getSequence()),
                "session", quoted(event.getSession()),
                "target", quoted(event.getTarget()),
                "tenant_id", quoted(event.getTenantUid()))));
  }

  private static String object(Map<String, String> fields) {
    return fields.entrySet().stream()
        .map(one -> quoted(one.getKey()) + ":" + one.getValue())
        .collect(Collectors.joining(",", "{", "}"));
  }

  /** Returns a text, a whole number or a boolean, which is all that details have. */
  private static String json(Value value) {
    return switch (value.getKindCase()) {
      case STRING_VALUE -> quoted(value.getStringValue());
      case BOOL_VALUE -> String.valueOf(value.getBoolValue());
      case NUMBER_VALUE -> String.valueOf((long) value.getNumberValue());
      default -> "null";
    };
  }

  /** Returns a text as JSON that escapes only what it must. */
  private static String quoted(String text) {
    StringBuilder quoted = new StringBuilder("\"");
    for (char one : text.toCharArray()) {
      switch (one) {
        case '"' -> quoted.append("\\\"");
        case '\\' -> quoted.append("\\\\");
        case '\n' -> quoted.append("\\n");
        case '\r' -> quoted.append("\\r");
        case '\t' -> quoted.append("\\t");
        case '\b' -> quoted.append("\\b");
        case '\f' -> quoted.append("\\f");
        default -> quoted.append(one < 0x20 ? "\\u%04x".formatted((int) one) : one);
      }
    }
    return quoted.append('"').toString();
  }
}
