package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The programs of the README compile. */
class ReadmeTest {
  private static final Pattern BLOCK = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL);

  /** What the parts of programs use that other parts, or the reader's program, have made. */
  private static final String BEGIN =
      """
      import dev.palimpsest.*;
      import dev.palimpsest.Memory;
      import dev.palimpsest.Session;
      import dev.palimpsest.v1.*;
      import java.nio.file.Path;
      import java.time.Duration;
      import java.util.*;
      import java.util.stream.Stream;

      class Parts {
        interface Mapper { String writeValueAsString(Object value); }
        interface Params { Object messages(); }
        Palimpsest palimpsest;
        Session alice;
        Memory<?> profile;
        Mapper mapper;
        Params params;
        List<String> questions;
        Stream<String> lines;
      """;

  private static JavaFileObject source(String name, String text) {
    return new SimpleJavaFileObject(
        URI.create("string:///" + name + ".java"), JavaFileObject.Kind.SOURCE) {
      @Override
      public CharSequence getCharContent(boolean ignoreEncodingErrors) {
        return text;
      }
    };
  }

  @Test
  void itsProgramsCompile(@TempDir Path folder) throws Exception {
    List<JavaFileObject> sources = new ArrayList<>();
    StringBuilder parts = new StringBuilder(BEGIN);
    List<String> blocks =
        BLOCK
            .matcher(Files.readString(Path.of("..", "README.md")))
            .results()
            .map(one -> one.group(1))
            .toList();
    for (String block : blocks) {
      if (block.contains("public class Main")) {
        sources.add(source("Main", block));
      } else {
        parts.append("void part").append(parts.length()).append("() throws Exception {\n");
        parts.append(block).append("}\n");
      }
    }
    sources.add(source("Parts", parts.append("}\n").toString()));
    assertEquals(2, sources.size(), "a whole program, and parts of others");
    assertTrue(blocks.size() > 5, "parts are found");
    var found = new DiagnosticCollector<JavaFileObject>();
    List<String> options = List.of("-proc:none", "-d", folder.toString());
    boolean isCompiled =
        ToolProvider.getSystemJavaCompiler()
            .getTask(null, null, found, options, null, sources)
            .call();
    assertTrue(
        isCompiled,
        () ->
            found.getDiagnostics().stream()
                .map(Object::toString)
                .collect(Collectors.joining("\n")));
  }
}
