package dev.palimpsest;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.FieldMask;
import com.google.protobuf.Message;
import dev.palimpsest.PalimpsestException.AlreadyExists;
import dev.palimpsest.v1.CheckSchemaRequest;
import dev.palimpsest.v1.CreateMemoryRequest;
import dev.palimpsest.v1.ListMemoriesRequest;
import dev.palimpsest.v1.Memory;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.PrismSpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** Creates memories, and compares one that is there with the wanted one. */
final class Memories {
  private static final Set<String> SCHEMAS = Set.of("schema_source", "json_schema");

  private Memories() {}

  static Memory create(Connection connection, Memory wanted, Optional<Duration> timeout) {
    CreateMemoryRequest request = CreateMemoryRequest.newBuilder().setMemory(wanted).build();
    return connection.call(MemoryServiceGrpc.getCreateMemoryMethod(), request, timeout);
  }

  /** Creates the memory, or accepts one that has the settings that are given. */
  static Memory createIfMissing(Connection connection, Memory wanted, Optional<Duration> timeout) {
    try {
      return create(connection, wanted, timeout);
    } catch (AlreadyExists error) {
      if (!error.reason().equals("MEMORY_EXISTS")) {
        throw error;
      }
      ListMemoriesRequest listing =
          ListMemoriesRequest.newBuilder().setSession(wanted.getSession()).build();
      Memory existing =
          connection
              .all(
                  MemoryServiceGrpc.getListMemoriesMethod(),
                  listing,
                  page -> page.getMemoriesList(),
                  timeout)
              .filter(one -> one.getId().equals(wanted.getId()))
              .findFirst()
              // It has been deleted meanwhile: the caller can try again.
              .orElseThrow(() -> error);
      List<String> others = differences(connection, wanted, existing, timeout);
      if (!others.isEmpty()) {
        throw PalimpsestException.reworded(
            error,
            "memory '"
                + wanted.getId()
                + "' exists already, and "
                + String.join("; ", others)
                + ". Use it as it is (session.memory), choose another id, or rebuild it",
            Map.of());
      }
      return existing;
    }
  }

  private static List<String> differences(
      Connection connection, Memory wanted, Memory existing, Optional<Duration> timeout) {
    if (wanted.getSpecCase() != existing.getSpecCase()) {
      return List.of("is a " + existing.getSpecCase().name().toLowerCase(Locale.ROOT) + " memory");
    }
    Message spec = spec(wanted);
    Message there = spec(existing);
    List<String> found = new ArrayList<>();
    for (Map.Entry<FieldDescriptor, Object> one : spec.getAllFields().entrySet()) {
      String name = one.getKey().getName();
      if (SCHEMAS.contains(name)) {
        String stored = existing.getPrism().getSchemaSource();
        if (!stored.equals(storedSchema(connection, wanted.getPrism(), timeout))) {
          found.add("its schema is another one");
        }
      } else if (!one.getValue().equals(there.getField(one.getKey()))) {
        found.add(name + " is " + there.getField(one.getKey()) + ", not " + one.getValue());
      }
    }
    return found;
  }

  private static Message spec(Memory memory) {
    return switch (memory.getSpecCase()) {
      case TREE -> memory.getTree();
      case STATE -> memory.getState();
      default -> memory.getPrism();
    };
  }

  /** Returns the paths of the settings that are set. */
  static FieldMask changed(Memory.Builder wanted) {
    String kind = wanted.getSpecCase().name().toLowerCase(Locale.ROOT);
    FieldMask.Builder mask = FieldMask.newBuilder();
    if (wanted.getSpecCase() != Memory.SpecCase.SPEC_NOT_SET) {
      spec(wanted.build())
          .getAllFields()
          .keySet()
          .forEach(field -> mask.addPaths(kind + "." + field.getName()));
    }
    return mask.build();
  }

  /** Returns the schema as the service keeps it. */
  private static String storedSchema(
      Connection connection, PrismSpec spec, Optional<Duration> timeout) {
    CheckSchemaRequest.Builder request = CheckSchemaRequest.newBuilder();
    if (spec.hasJsonSchema()) {
      request.setJsonSchema(spec.getJsonSchema());
    } else {
      request.setSchemaSource(spec.getSchemaSource());
    }
    return connection
        .call(MemoryServiceGrpc.getCheckSchemaMethod(), request.build(), timeout)
        .getSchemaSource();
  }
}
