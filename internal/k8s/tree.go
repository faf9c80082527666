package k8s

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Object is an object of the API, or a part of one. Its fields are written in their order.
type Object []Field

// Field is a field with a value: a text, a number, a truth, an Object, or a list of those.
type Field struct {
	Name  string
	Value any
	Why   string // a comment for people, in front of it; in YAML only
}

// list is a list of values of any of these types.
type list []any

// texts are texts as a list.
func texts(words ...string) list {
	l := make(list, len(words))
	for i, w := range words {
		l[i] = w
	}
	return l
}

// with adds fields at the end.
func (o Object) with(fields ...Field) Object { return append(o[:len(o):len(o)], fields...) }

// YAML writes objects as one stream of documents, each begun by a line of three dashes. head is a comment at its top.
func YAML(head string, objects []Object) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(head)
	for _, o := range objects {
		out.WriteString("---\n")
		node, err := o.node()
		if err != nil {
			return nil, err
		}
		e := yaml.NewEncoder(&out)
		e.SetIndent(2)
		if err := errJoin(e.Encode(node), e.Close()); err != nil {
			return nil, fmt.Errorf("write YAML: %w", err)
		}
	}
	return out.Bytes(), nil
}

func errJoin(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// JSON writes objects as one list, which kubectl takes as well.
func JSON(objects []Object) ([]byte, error) {
	items := make(list, len(objects))
	for i, o := range objects {
		items[i] = o
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(Object{{Name: "apiVersion", Value: "v1"}, {Name: "kind", Value: "List"}, {Name: "items", Value: items}}); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return out.Bytes(), nil
}

// MarshalJSON keeps the order of the fields.
func (o Object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			out.WriteByte(',')
		}
		for j, part := range []any{f.Name, f.Value} {
			if j > 0 {
				out.WriteByte(':')
			}
			e := json.NewEncoder(&out)
			e.SetEscapeHTML(false)
			if err := e.Encode(part); err != nil {
				return nil, err
			}
		}
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

func (o Object) node() (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, f := range o {
		name, err := scalar(f.Name)
		if err != nil {
			return nil, err
		}
		name.HeadComment = f.Why
		value, err := node(f.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		n.Content = append(n.Content, name, value)
	}
	if len(o) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n, nil
}

func node(value any) (*yaml.Node, error) {
	switch v := value.(type) {
	case Object:
		return v.node()
	case list:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i, item := range v {
			child, err := node(item)
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", i, err)
			}
			n.Content = append(n.Content, child)
		}
		return n, nil
	default:
		return scalar(v)
	}
}

// scalar is left to the library: it quotes texts that a reader, also one of YAML 1.1, would take for something else.
// Lines that begin with white space or a tab it writes as a block that it cannot read: they are quoted here.
func scalar(value any) (*yaml.Node, error) {
	if text, is := value.(string); is && strings.Contains(text, "\n") && (strings.ContainsAny(text, "\t") || strings.TrimLeft(text, " \n") != text) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: text}, nil
	}
	n := &yaml.Node{}
	if err := n.Encode(value); err != nil {
		return nil, err
	}
	return n, nil
}
