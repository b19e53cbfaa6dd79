package palimpsest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Schema is the shape of a structured memory.
type Schema struct {
	source, json string
	err          error
}

// SchemaSource is a schema as Python class source, which the service parses and never runs. Models
// are shown any schema in this form.
func SchemaSource(source string) Schema {
	if source == "" {
		return Schema{err: invalid("schema", "it is empty")}
	}
	return Schema{source: source}
}

// JSONSchema is a schema as a JSON Schema. The order of its properties is kept.
func JSONSchema(document []byte) Schema {
	if !json.Valid(document) {
		return Schema{err: invalid("schema", "it is no JSON")}
	}
	return Schema{json: string(document)}
}

// SchemaOf is the schema that a struct is:
//
//	type Profile struct {
//		Name      string            `json:"name" description:"What they are called."`
//		Diet      string            `json:"diet" enum:"any,vegetarian,vegan"`
//		Allergies []string          `json:"allergies"`
//		Facts     map[string]string `json:"facts"`
//		Born      *int              `json:"born"`
//	}
//
// Names are those of package encoding/json, so that a value decodes into the struct again. The tag
// `description` is guidance to the model, `enum` lists the texts that are allowed. Fields are
// strings, booleans, integers, floats, structs, slices, maps with keys of strings, arrays (tuples)
// and pointers to these (null is allowed). Embedded structs are as in encoding/json. What cannot be
// a part of a memory is an error that names struct and field, when the memory is created.
func SchemaOf[T any]() Schema {
	document, err := schemaOf(reflect.TypeFor[T]())
	return Schema{json: string(document), err: err}
}

// schemaOf returns the JSON Schema of a struct.
func schemaOf(of reflect.Type) ([]byte, error) {
	if of.Kind() != reflect.Struct {
		return nil, invalid("schema", "%v is no struct", of)
	}
	writer := &schemaWriter{}
	document := writer.record(of)
	if len(writer.faults) > 0 {
		return nil, invalid("schema", "%s", strings.Join(writer.faults, "; "))
	}
	return json.Marshal(document)
}

// An ordered is a JSON object whose keys keep their order, which models see.
type ordered []member

type member struct {
	key   string
	value any
}

func (o ordered) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	text.WriteByte('{')
	for at, one := range o {
		if at > 0 {
			text.WriteByte(',')
		}
		key, err := json.Marshal(one.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(one.value)
		if err != nil {
			return nil, err
		}
		text.Write(key)
		text.WriteByte(':')
		text.Write(value)
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

// schemaWriter collects what is wrong with fields, so that all of it is reported at once.
type schemaWriter struct {
	faults []string
	open   []reflect.Type
}

func (w *schemaWriter) fault(where, format string, arguments ...any) ordered {
	w.faults = append(w.faults, where+": "+fmt.Sprintf(format, arguments...))
	return nil
}

// record returns the schema of a struct.
func (w *schemaWriter) record(of reflect.Type) ordered {
	w.open = append(w.open, of)
	defer func() { w.open = w.open[:len(w.open)-1] }()
	before := len(w.faults)
	properties := w.properties(of, map[string]bool{})
	if len(properties) == 0 && len(w.faults) == before {
		return w.fault(of.String(), "it has no exported fields")
	}
	document := ordered{}
	if of.Name() != "" && !strings.ContainsAny(of.Name(), "[]") {
		document = append(document, member{"title", of.Name()})
	}
	return append(document, member{"type", "object"}, member{"properties", properties}, member{"additionalProperties", false})
}

// properties returns the fields of a struct, as encoding/json has them. names are those that the outer
// struct has had so far.
func (w *schemaWriter) properties(of reflect.Type, names map[string]bool) ordered {
	var properties ordered
	for at := range of.NumField() {
		field := of.Field(at)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		where := of.String() + "." + field.Name
		embedded := embeddedStruct(field)
		switch {
		case field.Tag.Get("json") == "-" || embedded == nil && !field.IsExported():
			continue
		case embedded != nil && !field.IsExported() && field.Type.Kind() == reflect.Pointer:
			w.fault(where, "no value can be read into an embedded pointer whose type is not exported: embed the struct itself")
			continue
		case embedded != nil && name == "" && slices.Contains(w.open, embedded):
			w.fault(where, "%v contains itself, which no schema can", embedded)
			continue
		case embedded != nil && name == "":
			// Its fields are those of the outer struct.
			w.open = append(w.open, embedded)
			properties = append(properties, w.properties(embedded, names)...)
			w.open = w.open[:len(w.open)-1]
			continue
		case slices.Contains(strings.Split(options, ","), "string"):
			w.fault(where, "it is written as a text (the option string): use a string, or leave the option out")
			continue
		}
		name = cmp.Or(name, field.Name)
		if names[name] {
			w.fault(where, "another field is written as %q too: name one of them otherwise", name)
			continue
		}
		names[name] = true
		written := w.described(w.typed(field.Type, field.Tag, where), field.Tag.Get("description"))
		properties = append(properties, member{name, written})
	}
	return properties
}

// embeddedStruct returns the struct that a field embeds, itself or by a pointer; nil: it embeds none.
func embeddedStruct(field reflect.StructField) reflect.Type {
	of := field.Type
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if field.Anonymous && of.Kind() == reflect.Struct {
		return of
	}
	return nil
}

func (w *schemaWriter) described(written ordered, description string) ordered {
	if description == "" || written == nil {
		return written
	}
	return append(written, member{"description", description})
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
)

// typed returns the schema of a type; nil after a fault.
func (w *schemaWriter) typed(of reflect.Type, tag reflect.StructTag, where string) ordered {
	if listed, ok := tag.Lookup("enum"); ok {
		return w.enum(of, listed, where)
	}
	if of.Kind() == reflect.Pointer {
		inner := w.typed(of.Elem(), "", where)
		return ordered{{"anyOf", []any{inner, ordered{{"type", "null"}}}}}
	}
	if pointer := reflect.PointerTo(of); pointer.Implements(marshaler) || pointer.Implements(textMarshaler) {
		return w.fault(where, "%v writes itself as JSON, so that its parts are not known: use a string", of)
	}
	switch of.Kind() {
	case reflect.String:
		return ordered{{"type", "string"}}
	case reflect.Bool:
		return ordered{{"type", "boolean"}}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return ordered{{"type", "integer"}}
	case reflect.Float32, reflect.Float64:
		return ordered{{"type", "number"}}
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return w.fault(where, "bytes are no part of a memory: use a string")
		}
		return ordered{{"type", "array"}, {"items", w.typed(of.Elem(), "", where)}}
	case reflect.Array:
		item := w.typed(of.Elem(), "", where)
		items := make([]any, 0, min(of.Len(), maxTuple))
		for range min(of.Len(), maxTuple) {
			items = append(items, item)
		}
		if of.Len() == 0 || of.Len() > maxTuple {
			return w.fault(where, "an array has 1 to %d items: use a slice", maxTuple)
		}
		return ordered{{"type", "array"}, {"prefixItems", items}, {"minItems", of.Len()}, {"maxItems", of.Len()}}
	case reflect.Map:
		if of.Key().Kind() != reflect.String {
			return w.fault(where, "the keys of a map are strings")
		}
		return ordered{{"type", "object"}, {"additionalProperties", w.typed(of.Elem(), "", where)}}
	case reflect.Struct:
		if slices.Contains(w.open, of) {
			return w.fault(where, "%v contains itself, which no schema can", of)
		}
		return w.record(of)
	}
	return w.fault(where, "%v is no type that a memory has: use strings, booleans, integers, floats, structs, slices, maps, arrays, or pointers to these", of)
}

// maxTuple is the most items of an array.
const maxTuple = 64

// enum returns the schema of a text that is one of those that a tag lists, or of a list of them.
func (w *schemaWriter) enum(of reflect.Type, listed, where string) ordered {
	if of.Kind() == reflect.Slice {
		return ordered{{"type", "array"}, {"items", w.enum(of.Elem(), listed, where)}}
	}
	if of.Kind() != reflect.String {
		return w.fault(where, "the tag enum is for strings and slices of them, not for %v", of)
	}
	values := []any{}
	for value := range strings.SplitSeq(listed, ",") {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		return w.fault(where, "the tag enum names no value")
	}
	return ordered{{"enum", values}}
}

// TypedMemory is a memory whose value is a struct.
type TypedMemory[T any] struct{ *Memory }

// CreateMemory creates a structured memory whose schema is that of a struct: [SchemaOf].
//
//	profile, err := palimpsest.CreateMemory[Profile](ctx, session, "profile", nil)
//	known, err := profile.Value(ctx, nil)
func CreateMemory[T any](ctx context.Context, session *Session, id string, options *MemoryOptions) (*TypedMemory[T], error) {
	memory, err := session.CreateMemory(ctx, id, SchemaOf[T](), options)
	return &TypedMemory[T]{memory}, err
}

// OpenMemory returns a memory by its id, whose value is a struct. Nothing is sent.
func OpenMemory[T any](session *Session, id string) *TypedMemory[T] {
	return &TypedMemory[T]{session.Memory(id)}
}

// Value reads the memory's value: now, as it was, or once it is fresh enough.
func (m *TypedMemory[T]) Value(ctx context.Context, options *ReadOptions) (T, error) {
	value, _, err := m.Read(ctx, options)
	return value, err
}

// Read reads the memory's value, and the memory itself: how far it is, and at which revision.
func (m *TypedMemory[T]) Read(ctx context.Context, options *ReadOptions) (T, *pb.Memory, error) {
	var value T
	found, err := m.Decode(ctx, &value, options)
	return value, found, err
}
