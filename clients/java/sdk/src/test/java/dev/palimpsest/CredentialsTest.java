package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CredentialsTest {

  private static String refusal(Palimpsest.Builder builder, Map<String, String> environment) {
    builder.environment(environment::get);
    return assertThrows(IllegalArgumentException.class, builder::connect).getMessage();
  }

  private static String address(String given) {
    return Target.of(given, Map.<String, String>of()::get).address();
  }

  @Test
  void targetsHaveThePortOfTheService() {
    assertEquals("127.0.0.1:50051", address(null));
    assertEquals("example.org:50051", address("grpcs://example.org"));
    assertEquals("[::1]:50051", address("::1"));
    assertEquals("[::1]:7", address("grpc://[::1]:7/"));
    assertEquals("unix:/run/palimpsest", address("unix:/run/palimpsest"));
    assertEquals("db:1", Target.of(null, Map.of("PALIMPSEST_ADDRESS", "db:1")::get).address());
    assertTrue(Target.of("grpcs://db", Map.<String, String>of()::get).secure());
    assertThrows(IllegalArgumentException.class, () -> address("http://localhost"));
    assertThrows(IllegalArgumentException.class, () -> address("grpc://"));
  }

  @Test
  void aTokenIsNotSentToOtherMachinesWithoutTls() {
    Map<String, String> token = Map.of("PALIMPSEST_TOKEN", "secret-token");
    String refused = refusal(Palimpsest.builder().target("example.org"), token);
    assertTrue(refused.contains("grpcs://"), refused);
    assertFalse(refused.contains("secret-token"), refused);
    Palimpsest.builder().target("localhost").environment(token::get).connect().close();
    Palimpsest.builder()
        .target("example.org")
        .plainToken(true)
        .environment(token::get)
        .connect()
        .close();
  }

  @Test
  void onlyThisMachineIsLocal() {
    assertTrue(Credentials.isLocal("127.0.0.1:1"));
    assertTrue(Credentials.isLocal("[::1]:1"));
    assertTrue(Credentials.isLocal("unix:/tmp/socket"));
    assertFalse(Credentials.isLocal("10.0.0.1:1"));
    assertFalse(Credentials.isLocal("localhost.example.org:1"));
    assertFalse(Credentials.isLocal("face:1"));
  }

  @Test
  void aTokenOfAFileIsReadAgain(@TempDir Path folder) throws Exception {
    Path file = Files.writeString(folder.resolve("token"), "one\n");
    var token = Credentials.ofFile(file);
    assertEquals("one", token.get());
    Files.writeString(file, "two\n");
    assertEquals("two", token.get());
    Files.writeString(file, "two words");
    assertFalse(
        assertThrows(IllegalArgumentException.class, token::get).getMessage().contains("words"));
  }

  @Test
  void settingsThatDoNotFitAreRefused(@TempDir Path folder) throws Exception {
    Map<String, String> nothing = Map.of();
    Path noPem = Files.writeString(folder.resolve("ca.pem"), "nothing");
    assertTrue(
        refusal(Palimpsest.builder().target("grpcs://db").caFile(noPem), nothing)
            .contains("no PEM file"));
    assertTrue(
        refusal(Palimpsest.builder().target("db").caFile(noPem), nothing).contains("grpcs://"));
    assertTrue(
        refusal(
                Palimpsest.builder().target("grpcs://db"),
                Map.of("PALIMPSEST_KEY_FILE", noPem.toString()))
            .contains("PALIMPSEST_CERTIFICATE_FILE"));
    assertTrue(
        refusal(Palimpsest.builder(), Map.of("PALIMPSEST_TOKEN", "a", "PALIMPSEST_TOKEN_FILE", "b"))
            .contains("both set"));
  }
}
