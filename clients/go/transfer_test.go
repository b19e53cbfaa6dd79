package palimpsest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const exported = `{"record":"header","session":"s","export_id":"e"}
{"record":"check","digest":"1"}
{"record":"chunk","text":"one"}
{"record":"check","digest":"2"}
{"record":"end"}
`

// FuzzExportLines cuts an export anywhere: what is whole is the beginning of it, up to a check.
func FuzzExportLines(f *testing.F) {
	f.Add([]byte(exported), 7)
	f.Add([]byte(exported[:60]), 3)
	f.Add([]byte("{}\n"), 1)
	f.Add([]byte("\n\n{\"record\":\"end\"}\n"), 2)
	f.Fuzz(func(t *testing.T, data []byte, part int) {
		if part < 1 {
			t.Skip()
		}
		lines, whole := &exportLines{}, []byte{}
		for at := 0; at < len(data); at += part {
			block, err := lines.feed(data[at:min(at+part, len(data))])
			if err != nil {
				if !errors.Is(err, ReasonFieldInvalid) {
					t.Error(err)
				}
				return
			}
			whole = append(whole, block...)
		}
		if !bytes.HasPrefix(data, whole) || int64(len(whole)) != lines.bytes || !bytes.HasSuffix(whole, lines.check) {
			t.Errorf("%q of %q, with %+v", whole, data, lines)
		}
		if len(whole) > 0 && (lines.check == nil || lines.exportID == "" && bytes.Contains(data, []byte(`"export_id":"e"`))) {
			t.Errorf("%+v", lines)
		}
	})
}

func TestAFileOfAnExportIsContinuedAfterItsLastCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "export")
	first := strings.Index(exported, `{"record":"chunk"`)
	for _, one := range []struct {
		content string
		bytes   int
		ended   bool
		wrong   string
	}{
		{"", 0, false, ""},
		{exported[:10], 0, false, ""},
		{exported[:first], first, false, ""},
		{exported[:first+8], first, false, ""},
		{exported, len(exported), true, ""},
		{"Dear diary", 0, false, "other content"},
		{strings.Repeat("{", maxHeaderBytes+1), 0, false, "other content"},
		{"{\"record\":\"header\",\"session\":\"other\"}\n", 0, false, "another session"},
		{"{\"a\": 1}\n", 0, false, "no header"},
	} {
		if err := os.WriteFile(path, []byte(one.content), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := exportedTo(file, "s")
		file.Close()
		left, _ := os.ReadFile(path)
		if one.wrong != "" {
			if !errors.Is(err, ReasonFieldInvalid) || !strings.Contains(err.Error(), one.wrong) || string(left) != one.content {
				t.Errorf("%.40q: %v", one.content, err)
			}
			continue
		}
		if err != nil || lines.bytes != int64(one.bytes) || lines.ended != one.ended || string(left) != exported[:one.bytes] {
			t.Errorf("%.40q: %+v %v, and %q is left", one.content, lines, err, left)
		}
	}
}
