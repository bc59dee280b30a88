// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template"
	"text/template/parse"

	"github.com/boxd-dev/boxd/internal/quantity"
)

// Format prints rows with a template of the caller's. Its fields are those of the rows as JSON: {{.id}} is what "id" is
// there. They may be written in any case and without _, as {{.ID}} and {{.CreatedAt}}. One that a row leaves out is empty.
type Format struct {
	of       reflect.Type
	table    bool // with a header, the columns set apart by tabs
	template *template.Template
	keys     headings
	raw      map[uintptr]any // what a row, or a part of one, was before empty fields were added; see json
}

// tablePrefix before a template asks for a header and aligned columns.
const tablePrefix = "table "

// ParseFormat reads a template for rows of a type. An error says what is wrong with the template, a field that rows of the
// type do not have among it.
func ParseFormat(text string, of reflect.Type) (*Format, error) {
	f := &Format{of: of}
	text, f.table = strings.CutPrefix(text, tablePrefix)
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("the template is empty")
	}
	t, err := template.New("format").Funcs(template.FuncMap{
		"json": f.json, "join": join, "split": strings.Split, "lower": strings.ToLower, "upper": strings.ToUpper, "size": size,
	}).Option("missingkey=zero").Parse(text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	c := &formatCheck{variables: map[string]reflect.Type{"$": of}, keys: headings{}}
	if t.Tree != nil {
		c.node(t.Root, of)
	}
	if f.template, f.keys = t, c.keys; c.err != nil {
		return nil, c.err
	}
	return f, nil
}

// Print prints a line for each row.
func (f *Format) Print(out io.Writer, rows ...any) error {
	var text bytes.Buffer
	if f.table {
		if err := f.line(&text, f.header(f.of, "")); err != nil {
			return err
		}
	}
	for _, row := range rows {
		data, err := f.data(row)
		if err == nil {
			err = f.line(&text, data)
		}
		if err != nil {
			return err
		}
	}
	if !f.table {
		_, err := out.Write(text.Bytes())
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := w.Write(text.Bytes()); err != nil {
		return err
	}
	return w.Flush()
}

func (f *Format) line(text *bytes.Buffer, data any) error {
	if err := f.template.Execute(text, data); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	text.WriteByte('\n')
	return nil
}

// data is a row as its JSON has it, with what that leaves out.
func (f *Format) data(row any) (any, error) {
	text, err := json.Marshal(row)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	f.raw = map[uintptr]any{}
	return f.fill(v, f.of), nil
}

// fill adds what JSON leaves out. t is the type that v was, nil if that is not known.
func (f *Format) fill(v any, t reflect.Type) any {
	if t == nil {
		return number(v)
	}
	if t.Kind() == reflect.Pointer {
		if v == nil && opaque(t.Elem()) || v == nil && t.Elem().Kind() != reflect.Struct {
			return ""
		}
		if v == nil {
			return map[string]string{} // false, and so is all in it
		}
		t = t.Elem()
	}
	if opaque(t) {
		if v == nil {
			return ""
		}
		return number(v)
	}
	switch t.Kind() {
	case reflect.Struct:
		had, _ := v.(map[string]any)
		all := map[string]any{}
		for name, field := range jsonFields(t) {
			all[name] = f.fill(had[name], field)
		}
		f.raw[reflect.ValueOf(all).Pointer()] = had
		return all
	case reflect.Slice, reflect.Array:
		had, _ := v.([]any)
		all := make([]any, len(had))
		for i := range had {
			all[i] = f.fill(had[i], t.Elem())
		}
		return all
	case reflect.Map:
		had, _ := v.(map[string]any)
		if t.Elem().Kind() == reflect.String { // where a key that is not there is empty
			all := map[string]string{}
			for key, value := range had {
				all[key], _ = value.(string)
			}
			return all
		}
		all := map[string]any{}
		for key, value := range had {
			all[key] = f.fill(value, t.Elem())
		}
		return all
	default:
		if v == nil && t.Kind() != reflect.Interface {
			return reflect.Zero(t).Interface()
		}
		return number(v)
	}
}

// number is what a template compares and prints as a number, if v is one.
func number(v any) any {
	n, ok := v.(json.Number)
	if !ok {
		return v
	}
	if i, err := n.Int64(); err == nil {
		return i
	}
	d, _ := n.Float64() // JSON has no other numbers
	return d
}

// opaque reports whether values of a type are text or a number in JSON, whatever is in them.
func opaque(t reflect.Type) bool {
	for _, way := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(way) || reflect.PointerTo(t).Implements(way) {
			return true
		}
	}
	return false
}

// jsonFields are the fields of a struct by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			inner := field.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			for name, of := range jsonFields(inner) {
				if _, shadowed := all[name]; !shadowed {
					all[name] = of
				}
			}
		case field.IsExported() && name != "-" && name != "":
			all[name] = field.Type
		}
	}
	return all
}

// header has the name of each field in its place.
func (f *Format) header(t reflect.Type, name string) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	title := strings.ToUpper(strings.ReplaceAll(name, "_", " "))
	switch {
	case t.Kind() == reflect.Map:
		keys := maps.Clone(f.keys)
		keys[""] = title
		return keys
	case t.Kind() != reflect.Struct || opaque(t):
		return title
	}
	all := map[string]any{}
	for name, field := range jsonFields(t) {
		all[name] = f.header(field, name)
	}
	return all
}

// headings are those of the keys of a map that a template names; the empty one is that of the map.
type headings map[string]string

// String is the heading of the map.
func (h headings) String() string { return h[""] }

// json is a function of templates.
func (f *Format) json(v any) (string, error) {
	if m, ok := v.(map[string]any); ok {
		if had, ok := f.raw[reflect.ValueOf(m).Pointer()]; ok {
			v = had
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// join is a function of templates: the elements of a list with something between them. A header is no list.
func join(list any, between string) string {
	v := reflect.ValueOf(list)
	if v.Kind() != reflect.Slice {
		return fmt.Sprint(list)
	}
	var words []string
	for i := range v.Len() {
		words = append(words, fmt.Sprint(v.Index(i).Interface()))
	}
	return strings.Join(words, between)
}

// size is a function of templates: a number of bytes as a person reads it. What is no number stays.
func size(v any) string {
	if n, ok := v.(int64); ok && n >= 0 {
		return quantity.Size(n).String()
	}
	return fmt.Sprint(v)
}

// formatCheck goes through a template, gives each field the name that it has in JSON, and finds those that there are not.
type formatCheck struct {
	variables map[string]reflect.Type
	keys      headings
	err       error
}

// node checks a part of a template where . has a type; nil is one that is not known.
func (c *formatCheck) node(n parse.Node, dot reflect.Type) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, part := range n.Nodes {
				c.node(part, dot)
			}
		}
	case *parse.TextNode:
		n.Text = []byte(strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(string(n.Text)))
	case *parse.ActionNode:
		c.pipe(n.Pipe, dot)
	case *parse.TemplateNode:
		c.pipe(n.Pipe, dot)
	case *parse.IfNode:
		c.pipe(n.Pipe, dot)
		c.node(n.List, dot)
		c.node(n.ElseList, dot)
	case *parse.WithNode:
		c.node(n.List, c.pipe(n.Pipe, dot))
		c.node(n.ElseList, dot)
	case *parse.RangeNode:
		each := c.pipe(n.Pipe, dot)
		for each != nil && each.Kind() == reflect.Pointer {
			each = each.Elem()
		}
		if each != nil && (each.Kind() == reflect.Slice || each.Kind() == reflect.Array || each.Kind() == reflect.Map) {
			each = each.Elem()
		} else {
			each = nil
		}
		for i, v := range n.Pipe.Decl {
			if c.variables[v.Ident[0]] = nil; i == len(n.Pipe.Decl)-1 {
				c.variables[v.Ident[0]] = each
			}
		}
		c.node(n.List, each)
		c.node(n.ElseList, dot)
	}
}

// pipe checks a pipeline and returns the type of its value, nil if that is not known.
func (c *formatCheck) pipe(p *parse.PipeNode, dot reflect.Type) (value reflect.Type) {
	if p == nil {
		return nil
	}
	for _, command := range p.Cmds {
		for _, arg := range command.Args {
			value = c.operand(arg, dot)
		}
	}
	if len(p.Cmds) != 1 || len(p.Cmds[0].Args) != 1 {
		value = nil
	}
	for _, v := range p.Decl {
		c.variables[v.Ident[0]] = value
	}
	return value
}

func (c *formatCheck) operand(n parse.Node, dot reflect.Type) reflect.Type {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot
	case *parse.FieldNode:
		return c.fields(n.Ident, dot)
	case *parse.VariableNode:
		return c.fields(n.Ident[1:], c.variables[n.Ident[0]])
	case *parse.ChainNode:
		return c.fields(n.Field, c.operand(n.Node, dot))
	case *parse.PipeNode:
		return c.pipe(n, dot)
	}
	return nil
}

// fields checks fields of a value, one inside the other, and returns the type of the last.
func (c *formatCheck) fields(names []string, of reflect.Type) reflect.Type {
	for i := range names {
		for of != nil && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of == nil || of.Kind() == reflect.Interface {
			return nil
		}
		var next reflect.Type
		switch {
		case opaque(of):
		case of.Kind() == reflect.Map:
			next = of.Elem()
			c.keys[names[i]] = strings.ToUpper(names[i])
		case of.Kind() == reflect.Struct:
			for name, field := range jsonFields(of) {
				if spelling(name) == spelling(names[i]) {
					names[i], next = name, field
				}
			}
		}
		if next == nil {
			if c.err == nil {
				c.err = fmt.Errorf("unknown field .%s", strings.Join(names[:i+1], "."))
			}
			return nil
		}
		of = next
	}
	return of
}

// spelling is what names that mean the same field have in common.
func spelling(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
