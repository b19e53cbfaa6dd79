package dev.palimpsest;

import java.util.Optional;
import java.util.function.UnaryOperator;

/**
 * Where the service is.
 *
 * @param address in gRPC's form
 * @param secure whether it is reached by TLS
 */
record Target(String address, boolean secure) {
  private static final int DEFAULT_PORT = 50051;
  private static final String DEFAULT = "127.0.0.1:50051";

  /** Reads HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT or unix:PATH. */
  static Target of(String given, UnaryOperator<String> environment) {
    String text =
        Optional.ofNullable(given)
            .or(() -> Optional.ofNullable(environment.apply("PALIMPSEST_ADDRESS")))
            .map(String::strip)
            .filter(one -> !one.isEmpty())
            .orElse(DEFAULT);
    if (text.startsWith("unix:")) {
      return new Target(text, false);
    }
    int separator = text.indexOf("://");
    String scheme = separator < 0 ? "grpc" : text.substring(0, separator);
    if (!scheme.equals("grpc") && !scheme.equals("grpcs")) {
      throw new IllegalArgumentException(
          "'"
              + text
              + "' is no address of the service: give HOST:PORT, grpc://HOST:PORT,"
              + " grpcs://HOST:PORT (TLS) or unix:PATH");
    }
    String address = separator < 0 ? text : text.substring(separator + 3).replaceAll("/+$", "");
    if (address.isEmpty() || address.contains("/")) {
      throw new IllegalArgumentException(
          "'" + text + "' is no address of the service: give " + scheme + "://HOST:PORT");
    }
    return new Target(withPort(address), scheme.equals("grpcs"));
  }

  private static String withPort(String address) {
    int colon = address.lastIndexOf(':');
    String host = colon < 0 ? "" : address.substring(0, colon);
    // Colons without brackets are those of an IPv6 address.
    if (colon >= 0 && (!host.contains(":") || host.endsWith("]"))) {
      return address;
    }
    boolean isBare = address.contains(":") && !address.startsWith("[");
    return (isBare ? "[" + address + "]" : address) + ":" + DEFAULT_PORT;
  }
}
