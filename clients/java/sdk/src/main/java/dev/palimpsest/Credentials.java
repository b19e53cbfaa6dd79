package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Details;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.cert.CertificateFactory;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/** What a client proves itself with, and whom it trusts. Nothing shows its token. */
final class Credentials implements ClientInterceptor {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final int MAX_TOKEN_CHARACTERS = 8192;
  private static final Set<String> TRUE = Set.of("1", "true", "yes", "on");

  private final Optional<Supplier<String>> token;
  private final ChannelCredentials credentials;
  private final boolean mayUseProxy;

  Credentials(Target target, Palimpsest.Builder given, UnaryOperator<String> environment) {
    token = tokenOf(given, environment);
    boolean allowed =
        given.plainToken
            || TRUE.contains(
                named(environment, "PALIMPSEST_PLAIN_TOKEN").orElse("").toLowerCase(Locale.ROOT));
    boolean isPlain = token.isPresent() && !target.secure();
    if (isPlain && !allowed && !isLocal(target.address())) {
      throw new IllegalArgumentException(
          "the token is not sent to "
              + target.address()
              + " without TLS: connect to grpcs://HOST:PORT, or allow it with plainToken(true)"
              + " (PALIMPSEST_PLAIN_TOKEN=true)");
    }
    mayUseProxy = !isPlain || allowed;
    if (target.secure()) {
      credentials = tls(given, environment);
    } else if (given.caFile != null || given.certificateFile != null || given.keyFile != null) {
      throw new IllegalArgumentException(
          "certificate files are not used, since "
              + target.address()
              + " is without TLS: use grpcs://HOST:PORT");
    } else {
      credentials = InsecureChannelCredentials.create();
    }
  }

  ChannelCredentials credentials() {
    return credentials;
  }

  /** Returns whether a proxy, which is another machine, may see what is sent. */
  boolean mayUseProxy() {
    return mayUseProxy;
  }

  /** Adds the token to each call. */
  @Override
  public <Q, R> ClientCall<Q, R> interceptCall(
      MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
    ClientCall<Q, R> call = next.newCall(method, options);
    if (token.isEmpty()) {
      return call;
    }
    return new SimpleForwardingClientCall<Q, R>(call) {
      @Override
      public void start(Listener<R> listener, Metadata headers) {
        headers.put(AUTHORIZATION, "Bearer " + current());
        super.start(listener, headers);
      }
    };
  }

  private String current() {
    try {
      return token.orElseThrow().get();
    } catch (RuntimeException error) {
      // The program's function may throw anything, and its words may hold anything.
      String said =
          error instanceof UnusableToken ? error.getMessage() : error.getClass().getSimpleName();
      throw PalimpsestException.of(
          Details.of(Status.Code.UNAUTHENTICATED, "there is no token for this call: " + said),
          error instanceof UnusableToken ? error : null);
    }
  }

  private static Optional<Supplier<String>> tokenOf(
      Palimpsest.Builder given, UnaryOperator<String> environment) {
    if (given.token != null) {
      return Optional.of(() -> checked(given.token.get()));
    }
    Optional<String> text = named(environment, "PALIMPSEST_TOKEN");
    Optional<String> path = named(environment, "PALIMPSEST_TOKEN_FILE");
    if (text.isPresent() && path.isPresent()) {
      throw new IllegalArgumentException(
          "PALIMPSEST_TOKEN and PALIMPSEST_TOKEN_FILE are both set: set one of them");
    }
    return text.map(Credentials::fixed).or(() -> path.map(one -> ofFile(Path.of(one))));
  }

  /** Returns what always returns this token. Throws for what is no token. */
  static Supplier<String> fixed(String token) {
    String text = checked(token);
    return () -> text;
  }

  /** Returns what reads the token of a file, which may change. Throws for what is no token. */
  static Supplier<String> ofFile(Path path) {
    Supplier<String> read =
        () -> {
          try {
            if (Files.size(path) > MAX_TOKEN_CHARACTERS + 100) {
              throw new UnusableToken("the token has more than 8192 characters");
            }
            return checked(Files.readString(path, StandardCharsets.ISO_8859_1));
          } catch (IOException error) {
            throw new UnusableToken("cannot read " + path + " (the token)");
          }
        };
    read.get();
    return read;
  }

  private static String checked(String given) {
    String token = given == null ? "" : given.strip();
    if (token.isEmpty()) {
      throw new UnusableToken("the token is empty: leave it out where the service needs none");
    }
    if (token.length() > MAX_TOKEN_CHARACTERS) {
      throw new UnusableToken("the token has more than 8192 characters");
    }
    if (!token.chars().allMatch(one -> one > ' ' && one < 127)) {
      throw new UnusableToken(
          "the token has characters that no token has: give it as it was issued");
    }
    return token;
  }

  /** A token cannot be sent; the message has nothing of it. */
  static final class UnusableToken extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    UnusableToken(String message) {
      super(message);
    }
  }

  private static ChannelCredentials tls(
      Palimpsest.Builder given, UnaryOperator<String> environment) {
    Optional<Path> ca = path(given.caFile, environment, "PALIMPSEST_CA_FILE");
    Optional<Path> own = path(given.certificateFile, environment, "PALIMPSEST_CERTIFICATE_FILE");
    Optional<Path> key = path(given.keyFile, environment, "PALIMPSEST_KEY_FILE");
    if (own.isPresent() != key.isPresent()) {
      throw new IllegalArgumentException(
          "a client's certificate needs its key, and "
              + (own.isPresent()
                  ? "keyFile (PALIMPSEST_KEY_FILE)"
                  : "certificateFile (PALIMPSEST_CERTIFICATE_FILE)")
              + " is missing: name it");
    }
    TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
    try {
      if (ca.isPresent()) {
        byte[] roots = pem(ca.get(), "PALIMPSEST_CA_FILE");
        CertificateFactory.getInstance("X.509")
            .generateCertificates(new ByteArrayInputStream(roots));
        builder.trustManager(new ByteArrayInputStream(roots));
      }
      if (own.isPresent() && key.isPresent()) {
        builder.keyManager(
            new ByteArrayInputStream(pem(own.get(), "PALIMPSEST_CERTIFICATE_FILE")),
            new ByteArrayInputStream(pem(key.get(), "PALIMPSEST_KEY_FILE")));
      }
    } catch (IOException | GeneralSecurityException error) {
      throw new IllegalArgumentException(
          "a certificate cannot be read: name PEM files, the key without a passphrase", error);
    }
    return builder.build();
  }

  private static byte[] pem(Path path, String variable) {
    try {
      byte[] content = Files.readAllBytes(path);
      if (!new String(content, StandardCharsets.ISO_8859_1).contains("-----BEGIN ")) {
        throw new IllegalArgumentException(path + " (" + variable + ") is no PEM file");
      }
      return content;
    } catch (IOException error) {
      throw new IllegalArgumentException("cannot read " + path + " (" + variable + ")", error);
    }
  }

  private static Optional<Path> path(
      Path given, UnaryOperator<String> environment, String variable) {
    return Optional.ofNullable(given).or(() -> named(environment, variable).map(Path::of));
  }

  private static Optional<String> named(UnaryOperator<String> environment, String variable) {
    return Optional.ofNullable(environment.apply(variable)).filter(one -> !one.isEmpty());
  }

  /** Returns whether only this machine is reached at an address in gRPC's form. */
  static boolean isLocal(String address) {
    if (address.startsWith("unix:")) {
      return true;
    }
    String host = address.substring(0, address.lastIndexOf(':')).replaceAll("[\\[\\]]", "");
    if (host.equals("localhost")) {
      return true;
    }
    // A name is not looked up: who answers for it may change.
    if (!host.matches("[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")) {
      return false;
    }
    try {
      return InetAddress.getByName(host).isLoopbackAddress();
    } catch (UnknownHostException error) {
      return false;
    }
  }
}
