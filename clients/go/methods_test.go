package palimpsest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// TestEachCallOfTheAPIHasAMethod looks for the calls of all services in the sources of this package.
func TestEachCallOfTheAPIHasAMethod(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_palimpsest_v1_access_service_proto, pb.File_palimpsest_v1_answer_service_proto,
		pb.File_palimpsest_v1_billing_service_proto, pb.File_palimpsest_v1_memory_service_proto,
		pb.File_palimpsest_v1_operation_service_proto, pb.File_palimpsest_v1_session_service_proto,
		pb.File_palimpsest_v1_state_service_proto, pb.File_palimpsest_v1_tree_service_proto,
	} {
		methods := file.Services().Get(0).Methods()
		for at := range methods.Len() {
			if name := string(methods.Get(at).Name()); !strings.Contains(sources.String(), "."+name+"(ctx") {
				t.Errorf("%s has no method", name)
			}
		}
		if methods.Len() == 0 {
			t.Errorf("%s has no calls", file.Path())
		}
	}
}
