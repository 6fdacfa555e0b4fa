package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	keywayv1 "keyway/api/keyway/v1"
)

// decoder walks a YAML tree along a message's descriptor. A general YAML to
// protobuf library is not used because an error must carry the field's path
// and must not print the line it stands on, which may hold a secret.
type decoder struct {
	problems *problems
}

// decode fills cfg from data. Every scalar is read from its text as written,
// so that an unquoted 2.50 stays the decimal "2.50" and never passes a float.
func decode(data []byte, cfg *keywayv1.Config, found *problems) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	switch err := dec.Decode(&document); {
	case errors.Is(err, io.EOF):
		found.add("", "the file is empty; it must hold one YAML document")
		return
	case err != nil:
		found.add("", "not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	switch err := dec.Decode(new(yaml.Node)); {
	case err == nil:
		found.add("", "the file holds more than one YAML document; keep one")
		return
	case !errors.Is(err, io.EOF):
		found.add("", "not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	root := document.Content[0]
	if isNull(root) {
		found.add("", "the file is empty; it must hold one YAML document")
		return
	}
	d := decoder{problems: found}
	d.message(root, cfg.ProtoReflect(), "")
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func (d decoder) message(node *yaml.Node, msg protoreflect.Message, path string) {
	if !d.kind(node, yaml.MappingNode, path) {
		return
	}
	seen := make(map[string]struct{}, len(node.Content)/2)
	fields := msg.Descriptor().Fields()
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field := fields.ByName(protoreflect.Name(key.Value))
		if key.Kind != yaml.ScalarNode || field == nil {
			d.problems.addEach(path, "line %d: unknown field %s; known: %s", key.Line, quote(key.Value), fieldNames(fields))
			continue
		}
		if _, dup := seen[key.Value]; dup {
			d.problems.addEach(path, "line %d: field %q is given twice", key.Line, key.Value)
			continue
		}
		seen[key.Value] = struct{}{}
		if isNull(value) { // a key without a value is a field left out
			continue
		}
		d.field(value, fieldOf{msg, field}, join(path, key.Value))
	}
}

// fieldOf is one field of one message value.
type fieldOf struct {
	msg  protoreflect.Message
	desc protoreflect.FieldDescriptor
}

func (d decoder) field(node *yaml.Node, f fieldOf, path string) {
	switch {
	case f.desc.IsList():
		d.list(node, f, path)
	case f.desc.Message() != nil && f.desc.Message().FullName() == durationName:
		if text, ok := d.scalar(node, path); ok {
			d.duration(text, f, path)
		}
	case f.desc.Message() != nil:
		d.message(node, f.msg.Mutable(f.desc).Message(), path)
	default:
		if text, ok := d.scalar(node, path); ok {
			if value, ok := d.value(text, f.desc, path); ok {
				f.msg.Set(f.desc, value)
			}
		}
	}
}

var durationName = (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName()

func (d decoder) duration(text string, f fieldOf, path string) {
	parsed, err := time.ParseDuration(text)
	if err != nil {
		d.problems.add(path, "%s is not a duration such as \"30s\"", quote(text))
		return
	}
	f.msg.Set(f.desc, protoreflect.ValueOfMessage(durationpb.New(parsed).ProtoReflect()))
}

func (d decoder) list(node *yaml.Node, f fieldOf, path string) {
	if !d.kind(node, yaml.SequenceNode, path) {
		return
	}
	list := f.msg.Mutable(f.desc).List()
	for i, item := range node.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		// The element is appended even when it is wrong, so that the
		// indices of later problems are those of the file.
		if f.desc.Message() != nil {
			element := list.AppendMutable().Message()
			d.message(item, element, at)
			continue
		}
		value := list.NewElement()
		if text, ok := d.scalar(item, at); ok {
			if read, ok := d.value(text, f.desc, at); ok {
				value = read
			}
		}
		list.Append(value)
	}
}

func (d decoder) value(text string, desc protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	switch desc.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), true
	case protoreflect.BoolKind:
		if text != "true" && text != "false" {
			d.problems.add(path, "%s is neither true nor false", quote(text))
			return protoreflect.Value{}, false
		}
		return protoreflect.ValueOfBool(text == "true"), true
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			d.problems.add(path, "%s is not a whole number up to %d", quote(text), int64(math.MaxInt64))
		}
		return protoreflect.ValueOfInt64(n), err == nil
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			d.problems.add(path, "%s is not a whole number from 0 to %d", quote(text), uint32(math.MaxUint32))
		}
		return protoreflect.ValueOfUint32(uint32(n)), err == nil
	case protoreflect.Uint64Kind:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			d.problems.add(path, "%s is not a whole number from 0 to %d", quote(text), uint64(math.MaxUint64))
		}
		return protoreflect.ValueOfUint64(n), err == nil
	default:
		// A test decodes every field of the schema, so this is met by the
		// author of a new field type, not by an operator.
		d.problems.add(path, "fields of type %s are not supported", desc.Kind())
		return protoreflect.Value{}, false
	}
}

func (d decoder) scalar(node *yaml.Node, path string) (string, bool) {
	if !d.kind(node, yaml.ScalarNode, path) {
		return "", false
	}
	if isNull(node) {
		return "", true
	}
	return node.Value, true
}

func (d decoder) kind(node *yaml.Node, want yaml.Kind, path string) bool {
	if node.Kind == yaml.AliasNode {
		d.problems.add(path, "YAML aliases are not supported; write the value out")
		return false
	}
	if node.Kind != want {
		d.problems.add(path, "must be %s, not %s", kindNames[want], kindNames[node.Kind])
		return false
	}
	return true
}

var kindNames = map[yaml.Kind]string{
	yaml.MappingNode:  "a mapping of fields",
	yaml.SequenceNode: "a list",
	yaml.ScalarNode:   "a single value",
}

func fieldNames(fields protoreflect.FieldDescriptors) string {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	return strings.Join(names, ", ")
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
