package palimpsest

import (
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"
)

type place struct {
	Street string `json:"street"`
	City   string `json:"city,omitempty"`
}

type base struct {
	Name   string `json:"name" description:"What they are called."`
	hidden int
}

type everything struct {
	base
	Born    *int              `json:"born"`
	Diet    string            `json:"diet" enum:"any, vegetarian,vegan"`
	Moods   []string          `json:"moods" enum:"glad,sad"`
	Likes   []string          `json:"likes"`
	Facts   map[string]string `json:"facts"`
	Home    place             `json:"home"`
	Places  map[string][]place
	Weight  float32    `json:"weight"`
	Is      bool       `json:"is"`
	Corner  [2]float64 `json:"corner"`
	Ignored chan int   `json:"-"`
}

func TestASchemaHasTheNamesAndTheOrderOfTheStruct(t *testing.T) {
	const home = `{"title":"place","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},"additionalProperties":false}`
	wanted := `{"title":"everything","type":"object","properties":{` +
		`"name":{"type":"string","description":"What they are called."},` +
		`"born":{"anyOf":[{"type":"integer"},{"type":"null"}]},` +
		`"diet":{"enum":["any","vegetarian","vegan"]},` +
		`"moods":{"type":"array","items":{"enum":["glad","sad"]}},` +
		`"likes":{"type":"array","items":{"type":"string"}},` +
		`"facts":{"type":"object","additionalProperties":{"type":"string"}},` +
		`"home":` + home + `,` +
		`"Places":{"type":"object","additionalProperties":{"type":"array","items":` + home + `}},` +
		`"weight":{"type":"number"},` +
		`"is":{"type":"boolean"},` +
		`"corner":{"type":"array","prefixItems":[{"type":"number"},{"type":"number"}],"minItems":2,"maxItems":2}` +
		`},"additionalProperties":false}`
	schema := SchemaOf[everything]()
	if schema.err != nil || schema.json != wanted {
		t.Errorf("%v\n%s\n%s", schema.err, schema.json, wanted)
	}
}

// namesOf returns the names of a schema's properties, each as often as it is written.
func namesOf(t *testing.T, document []byte) []string {
	t.Helper()
	var whole struct{ Properties json.RawMessage }
	if err := json.Unmarshal(document, &whole); err != nil {
		t.Fatal(err)
	}
	var names []string
	decoder := json.NewDecoder(strings.NewReader(string(whole.Properties)))
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return names
		}
		switch one := token.(type) {
		case json.Delim:
			depth += map[json.Delim]int{'{': 1, '[': 1, '}': -1, ']': -1}[one]
		case string:
			if depth == 1 {
				names = append(names, one)
			}
		}
	}
}

// Root is exported, so that a pointer to it can be embedded.
type Root struct {
	Name string `json:"name"`
}

type outer struct {
	*Root
	Kind string
}

// TestASchemaHasWhatEncodingJSONWrites compares with what encoding/json does with the same types.
func TestASchemaHasWhatEncodingJSONWrites(t *testing.T) {
	for _, value := range []any{
		everything{base: base{hidden: 1}}, place{}, outer{Root: &Root{}}, struct{ A, B string }{},
		struct {
			Embedded base `json:"inner"`
		}{},
		struct {
			place `json:"where"`
			Other string
		}{},
	} {
		document, err := schemaOf(reflect.TypeOf(value))
		if err != nil {
			t.Fatal(err)
		}
		written, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]json.RawMessage{}
		if err := json.Unmarshal(written, &found); err != nil {
			t.Fatal(err)
		}
		names := namesOf(t, document)
		for _, name := range names {
			delete(found, name)
		}
		if len(found) != 0 || len(names) == 0 {
			t.Errorf("%T: %s\n%s", value, document, written)
		}
	}
}

type itself struct {
	Next []itself `json:"next"`
}

// WithinItself embeds itself.
type WithinItself struct {
	*WithinItself
	Name string
}

func TestWhatNoMemoryHasIsRefusedByStructAndField(t *testing.T) {
	for _, one := range []struct {
		of   reflect.Type
		said string
	}{
		{reflect.TypeFor[string](), "string is no struct"},
		{reflect.TypeFor[map[string]string](), "is no struct"},
		{reflect.TypeFor[struct{ hidden int }](), "it has no exported fields"},
		{reflect.TypeFor[itself](), "palimpsest.itself.Next: palimpsest.itself contains itself"},
		{reflect.TypeFor[WithinItself](), "palimpsest.WithinItself.WithinItself: palimpsest.WithinItself contains itself"},
		{reflect.TypeFor[struct{ At time.Time }](), "At: time.Time writes itself as JSON"},
		{reflect.TypeFor[struct{ Big big.Int }](), "Big: big.Int writes itself as JSON"},
		{reflect.TypeFor[struct{ Big *big.Int }](), "Big: big.Int writes itself as JSON"},
		{reflect.TypeFor[struct{ Raw json.RawMessage }](), "Raw: json.RawMessage writes itself as JSON"},
		{reflect.TypeFor[struct{ Raw []byte }](), "Raw: bytes are no part of a memory"},
		{reflect.TypeFor[struct{ Any any }](), "Any: interface {} is no type that a memory has"},
		{reflect.TypeFor[struct{ Any []chan int }](), "Any: chan int is no type"},
		{reflect.TypeFor[struct{ Many [65]int }](), "Many: an array has 1 to 64 items"},
		{reflect.TypeFor[struct{ None [0]int }](), "None: an array has 1 to 64 items"},
		{reflect.TypeFor[struct{ By map[int]string }](), "By: the keys of a map are strings"},
		{reflect.TypeFor[struct{ *base }](), "base: no value can be read into an embedded pointer"},
		{reflect.TypeFor[struct {
			Diet int `enum:"a,b"`
		}](), "Diet: the tag enum is for strings"},
		{reflect.TypeFor[struct {
			Diet string `enum:" , "`
		}](), "Diet: the tag enum names no value"},
		{reflect.TypeFor[struct {
			Age int `json:"age,string"`
		}](), "Age: it is written as a text (the option string)"},
		{reflect.TypeFor[struct {
			base
			Other string `json:"name"`
		}](), `Other: another field is written as "name" too`},
	} {
		_, err := schemaOf(one.of)
		if !errors.Is(err, ReasonFieldInvalid) || !strings.Contains(err.Error(), one.said) {
			t.Errorf("%v: %v, not %q", one.of, err, one.said)
		}
	}
}

type twiceWrong struct {
	First chan int
	Good  string
	Last  func()
}

func TestAllFaultsOfASchemaAreReportedAtOnce(t *testing.T) {
	_, err := schemaOf(reflect.TypeFor[twiceWrong]())
	if err == nil || !strings.Contains(err.Error(), "First: ") || !strings.Contains(err.Error(), "Last: ") || strings.Contains(err.Error(), "Good") {
		t.Error(err)
	}
}

func TestAFaultOfASchemaIsReportedWhenTheMemoryIsCreated(t *testing.T) {
	client := serve(t, &server{})
	for _, schema := range []Schema{SchemaOf[string](), SchemaSource(""), JSONSchema([]byte("{")), JSONSchema(nil)} {
		if _, err := client.Session("s").CreateMemory(t.Context(), "m", schema, nil); !errors.Is(err, ReasonFieldInvalid) {
			t.Errorf("%+v: %v", schema, err)
		}
		if _, err := client.Session("s").Ask(t.Context(), "?", &AskOptions{ResponseSchema: schema}); !errors.Is(err, ReasonFieldInvalid) {
			t.Errorf("%+v: %v", schema, err)
		}
	}
	if document := `{"type":"object"}`; JSONSchema([]byte(document)).json != document {
		t.Error("a JSON Schema is not kept as it is")
	}
}
