package dev.palimpsest;

import com.google.protobuf.Message;
import dev.palimpsest.v1.Budget;
import dev.palimpsest.v1.CheckSchemaRequest;
import dev.palimpsest.v1.CreateSessionRequest;
import dev.palimpsest.v1.DeleteSessionRequest;
import dev.palimpsest.v1.GetOperationRequest;
import dev.palimpsest.v1.ImportSessionRequest;
import dev.palimpsest.v1.ListMemoriesRequest;
import dev.palimpsest.v1.ListOperationsRequest;
import dev.palimpsest.v1.ListSessionsRequest;
import dev.palimpsest.v1.ListUsageRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.OperationServiceGrpc;
import dev.palimpsest.v1.RetryMemoryRequest;
import dev.palimpsest.v1.SessionServiceGrpc;
import dev.palimpsest.v1.StorageUsage;
import io.grpc.Channel;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/**
 * A client of Palimpsest, the memory service for programs that use language models.
 *
 * <pre>{@code
 * try (Palimpsest palimpsest = Palimpsest.connect()) {
 *   Session alice = palimpsest.session("alice");
 *   alice.remember("I am allergic to peanuts.");
 *   System.out.println(alice.recall("What may she eat?").getText());
 * }
 * }</pre>
 *
 * <p>One client is enough for a program: all threads may share it. Its calls are repeated while the
 * service is unavailable, until their timeout; what writes has a request id, so that it is done
 * once. They throw {@link PalimpsestException}, and IllegalArgumentException for what cannot be
 * sent at all.
 *
 * <p>What a call returns, and what its options are, are the messages of the API ({@code
 * dev.palimpsest.v1}); their documentation is that of the API.
 */
public final class Palimpsest extends Resource implements AutoCloseable {
  private static final Duration REACH = Duration.ofMillis(2500);

  private Palimpsest(Connection connection) {
    super(connection, "", "", Optional.empty());
  }

  /** Returns a client of a channel of a test. */
  static Palimpsest of(ManagedChannel channel, Duration timeout) {
    return new Palimpsest(
        new Connection("test", channel, Optional.empty(), Optional.of(timeout), REACH));
  }

  /**
   * Returns a client of the service that {@code PALIMPSEST_ADDRESS} names, else of the one on this
   * machine that {@code palimpsest up} starts. Nothing is sent before the first call.
   */
  public static Palimpsest connect() {
    return builder().connect();
  }

  /** Returns a client of the service at HOST:PORT, grpc://…, grpcs://… (TLS) or unix:PATH. */
  public static Palimpsest connect(String target) {
    return builder().target(target).connect();
  }

  /** Returns the settings of a client. */
  public static Builder builder() {
    return new Builder();
  }

  /** The settings of a client. What is not set is that of the environment. */
  public static final class Builder {
    private String target;
    Supplier<String> token;
    Path caFile;
    Path certificateFile;
    Path keyFile;
    boolean plainToken;
    private Optional<Duration> timeout = Optional.empty();
    private Duration reach = REACH;
    private UnaryOperator<String> environment = System::getenv;

    private Builder() {}

    /** Names the service: HOST:PORT, grpc://…, grpcs://… (TLS) or unix:PATH; port 50051. */
    public Builder target(String target) {
      this.target = target;
      return this;
    }

    /** Sends an API key or a JSON Web Token with each call ({@code PALIMPSEST_TOKEN}). */
    public Builder token(String token) {
      this.token = Credentials.fixed(token);
      return this;
    }

    /** Sends what this function returns, which is called before each call. */
    public Builder token(Supplier<String> token) {
      this.token = token;
      return this;
    }

    /** Sends the content of a file, which may change ({@code PALIMPSEST_TOKEN_FILE}). */
    public Builder tokenFile(Path path) {
      this.token = Credentials.ofFile(path);
      return this;
    }

    /** Allows the token to be sent to other machines without TLS. */
    public Builder plainToken(boolean allowed) {
      this.plainToken = allowed;
      return this;
    }

    /** Names the roots to trust for grpcs://, in PEM ({@code PALIMPSEST_CA_FILE}). */
    public Builder caFile(Path path) {
      this.caFile = path;
      return this;
    }

    /**
     * Names the client's own certificate and its key, in PEM ({@code PALIMPSEST_CERTIFICATE_FILE},
     * {@code PALIMPSEST_KEY_FILE}).
     */
    public Builder certificate(Path certificateFile, Path keyFile) {
      this.certificateFile = certificateFile;
      this.keyFile = keyFile;
      return this;
    }

    /**
     * Limits calls without a timeout of their own. By default 30 seconds, 60 for questions and
     * appends. Producers and watches have limits of their own.
     */
    public Builder timeout(Duration timeout) {
      this.timeout = Optional.of(timeout);
      return this;
    }

    /**
     * Says how long to try a service that was never reached; by default 2.5 seconds. Later, calls
     * wait for a lost service until their timeout.
     */
    public Builder reachFor(Duration reach) {
      this.reach = reach;
      return this;
    }

    Builder environment(UnaryOperator<String> environment) {
      this.environment = environment;
      return this;
    }

    /**
     * Returns the client. Nothing is sent before its first call.
     *
     * @throws IllegalArgumentException for settings that cannot be used, with what to do
     */
    public Palimpsest connect() {
      Target found = Target.of(target, environment);
      Credentials credentials = new Credentials(found, this, environment);
      NettyChannelBuilder channel =
          NettyChannelBuilder.forTarget(found.address(), credentials.credentials())
              .maxInboundMessageSize(8 * 1024 * 1024)
              .keepAliveTime(30, TimeUnit.SECONDS)
              .keepAliveTimeout(10, TimeUnit.SECONDS)
              .disableRetry()
              .userAgent("palimpsest-java/" + version());
      if (!found.address().startsWith("unix:")) {
        channel.withOption(ChannelOption.CONNECT_TIMEOUT_MILLIS, 5000);
      }
      if (!credentials.mayUseProxy()) {
        channel.proxyDetector(address -> null);
      }
      try {
        return new Palimpsest(
            new Connection(
                found.address(), channel.build(), Optional.of(credentials), timeout, reach));
      } catch (IllegalArgumentException error) {
        throw new IllegalArgumentException(
            "the certificate and its key cannot be used, or the address cannot be read: "
                + error.getMessage(),
            error);
      }
    }
  }

  /** Returns the version of this client; "0" where it runs from its classes. */
  public static String version() {
    return Optional.ofNullable(Palimpsest.class.getPackage().getImplementationVersion())
        .orElse("0");
  }

  /** Returns the address of the service, in gRPC's form. */
  public String address() {
    return connection.address();
  }

  /** Returns the channel, which sends the token, for stubs of {@code dev.palimpsest.v1}. */
  public Channel channel() {
    return connection.channel();
  }

  /**
   * Makes any unary call of the API, and repeats it while the service is unavailable.
   *
   * <pre>{@code
   * palimpsest.call(MemoryServiceGrpc.getFoldMemoryMethod(), request);
   * }</pre>
   */
  public <Q extends Message, R> R call(MethodDescriptor<Q, R> method, Q request) {
    return connection.call(method, request, Optional.empty());
  }

  /** Makes any unary call of the API within a timeout of its own. */
  public <Q extends Message, R> R call(MethodDescriptor<Q, R> method, Q request, Duration timeout) {
    return connection.call(method, request, Optional.of(timeout));
  }

  /** Returns a session by its id; nothing is sent. */
  public Session session(String id) {
    return new Session(connection, id, Optional.empty());
  }

  /**
   * Creates a session.
   *
   * @throws PalimpsestException.AlreadyExists when there is one ({@code SESSION_EXISTS})
   * @throws PalimpsestException.Aborted while rows of a deleted one are being removed
   */
  public Session createSession(String id) {
    return createSession(id, session -> {});
  }

  /** Creates a session with a language, metadata or a retention of its own. */
  public Session createSession(String id, Consumer<dev.palimpsest.v1.Session.Builder> settings) {
    dev.palimpsest.v1.Session.Builder wanted = dev.palimpsest.v1.Session.newBuilder();
    settings.accept(wanted);
    CreateSessionRequest request =
        CreateSessionRequest.newBuilder().setSession(wanted.setId(id)).build();
    call(SessionServiceGrpc.getCreateSessionMethod(), request);
    return session(id);
  }

  /** Creates a session, unless there is one with this id. */
  public Session createSessionIfMissing(String id) {
    return createSessionIfMissing(id, session -> {});
  }

  /**
   * Creates a session, or uses the one with this id, whose metadata stays unchanged.
   *
   * @throws PalimpsestException.AlreadyExists when it has another language than a given one
   */
  public Session createSessionIfMissing(
      String id, Consumer<dev.palimpsest.v1.Session.Builder> settings) {
    try {
      return createSession(id, settings);
    } catch (PalimpsestException.AlreadyExists error) {
      dev.palimpsest.v1.Session.Builder wanted = dev.palimpsest.v1.Session.newBuilder();
      settings.accept(wanted);
      String language = wanted.getLanguage();
      if (!language.isEmpty() && !language.equals(session(id).info().getLanguage())) {
        throw error;
      }
      return session(id);
    }
  }

  /** Returns all sessions, by id; pages are read as needed. */
  public Stream<dev.palimpsest.v1.Session> sessions() {
    return connection.all(
        SessionServiceGrpc.getListSessionsMethod(),
        ListSessionsRequest.newBuilder().setPageSize(PAGE).build(),
        page -> page.getSessionsList(),
        Optional.empty());
  }

  /**
   * Deletes a session with everything in it, for good.
   *
   * @throws PalimpsestException.NotFound when there is none
   */
  public void deleteSession(String id) {
    deleteSession(id, request -> {});
  }

  /** Deletes a session; the options say for example that it may be missing. */
  public void deleteSession(String id, Consumer<DeleteSessionRequest.Builder> options) {
    DeleteSessionRequest.Builder request = DeleteSessionRequest.newBuilder().setSession(id);
    options.accept(request);
    call(SessionServiceGrpc.getDeleteSessionMethod(), request.build());
  }

  /** Imports the file of an export, under its own id; otherwise as the other. */
  public Session importSession(Path path) {
    return importSession(path, opening -> {}, progress -> {});
  }

  /**
   * Imports the file of an export. The options name another session, or say that one that was
   * deleted after the export may be restored.
   *
   * <p>The session is visible once all of it was verified. After an interruption, call it again: it
   * continues. The consumer is called after each block.
   *
   * @throws PalimpsestException.AlreadyExists ({@code SESSION_EXISTS})
   * @throws PalimpsestException.InvalidArgument ({@code IMPORT_INVALID}, with the line)
   * @throws PalimpsestException.FailedPrecondition ({@code IMPORT_UNFINISHED})
   * @throws IllegalArgumentException for a file that is no export
   * @throws java.io.UncheckedIOException when the file cannot be read
   */
  public Session importSession(
      Path path,
      Consumer<ImportSessionRequest.Open.Builder> options,
      Consumer<TransferProgress> onProgress) {
    return session(Upload.run(connection, path, options, onProgress));
  }

  /** Returns the memories of all sessions, in no order; pages are read as needed. */
  public Stream<dev.palimpsest.v1.Memory> memories() {
    return connection.all(
        MemoryServiceGrpc.getListMemoriesMethod(),
        ListMemoriesRequest.newBuilder().setPageSize(PAGE).build(),
        page -> page.getMemoriesList(),
        Optional.empty());
  }

  /** Retries the stalled memories of all sessions; returns how many. */
  public long retryStalled() {
    RetryMemoryRequest request = RetryMemoryRequest.getDefaultInstance();
    return call(MemoryServiceGrpc.getRetryMemoryMethod(), request).getRetried();
  }

  /**
   * Checks class source; returns the schema as models see it.
   *
   * @throws PalimpsestException.InvalidArgument with line and column ({@code SCHEMA_INVALID})
   */
  public String checkSchema(String source) {
    CheckSchemaRequest request = CheckSchemaRequest.newBuilder().setSchemaSource(source).build();
    return call(MemoryServiceGrpc.getCheckSchemaMethod(), request).getSchemaSource();
  }

  /** Returns work in the background, such as a consolidation; it is kept for 30 days. */
  public Operation operation(String id) {
    GetOperationRequest request = GetOperationRequest.newBuilder().setOperation(id).build();
    return new Operation(
        connection, call(OperationServiceGrpc.getGetOperationMethod(), request), Optional.empty());
  }

  /** Returns the operations that the options select, newest first, without their results. */
  public Stream<Operation> operations(Consumer<ListOperationsRequest.Builder> options) {
    ListOperationsRequest.Builder request = ListOperationsRequest.newBuilder().setPageSize(PAGE);
    options.accept(request);
    return connection
        .all(
            OperationServiceGrpc.getListOperationsMethod(),
            request.build(),
            page -> page.getOperationsList(),
            Optional.empty())
        .map(one -> new Operation(connection, one, Optional.empty()));
  }

  /** Returns all budgets and how much of each is spent: the tenant's, then by session. */
  public Stream<Budget> budgets() {
    return listBudgets();
  }

  /** Returns the usage of all model calls, by session. */
  public UsageReport usage() {
    return usage(request -> request.addGroupBy(ListUsageRequest.Grouping.GROUPING_SESSION));
  }

  /** Returns the usage of all model calls, by the groups and days of the options. */
  public UsageReport usage(Consumer<ListUsageRequest.Builder> options) {
    return readUsage(options);
  }

  /** Returns how much is stored of the tenant by kind, with indexes: an estimate. */
  public List<StorageUsage.Size> storage() {
    return readStorage();
  }

  /** Returns administration: tenants, keys, erasures, sources and the audit log. */
  public Access access() {
    return new Access(connection, "");
  }

  /** Returns the loop of an agent with context compression, on the state memory "state". */
  public Agent agent(String session, String task) {
    return agent(session, options -> options.spec(spec -> spec.setTask(task)));
  }

  /** Returns the loop of an agent with context compression. */
  public Agent agent(String session, Consumer<Agent.Options> options) {
    Agent.Options given = new Agent.Options();
    options.accept(given);
    createSessionIfMissing(session);
    return Agent.open(connection, session(session), given);
  }

  /** Closes the connection, and ends what runs on it. */
  @Override
  public void close() {
    connection.close();
  }
}
