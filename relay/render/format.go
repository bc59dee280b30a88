// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template/parse"
)

// Format prints rows with a template of the user's. Its fields are those of the rows' JSON: {{.id}} is the value of
// "id". They may be written in any case and without _, as {{.ID}} and {{.CreatedAt}}. A field that a row omits is empty.
type Format struct {
	typ   reflect.Type
	table bool // with a header, and columns separated by tabs
	trees map[string]*parse.Tree
	keys  map[string]any // of maps, for the header
}

const (
	// tablePrefix before a template requests a header and aligned columns.
	tablePrefix = "table "
	// formatName is the name of the template itself, among those that it defines.
	formatName = "format"
)

// ParseFormat parses a template for rows of a type. An error says what is wrong with the template, for example a field
// that rows of the type do not have.
func ParseFormat(text string, typ reflect.Type) (*Format, error) {
	f := &Format{typ: typ}
	text, f.table = strings.CutPrefix(text, tablePrefix)
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("the template is empty")
	}
	trees, err := parse.Parse(formatName, text, "", "", functionNames())
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	c := &formatCheck{variables: map[string]reflect.Type{"$": typ}, keys: map[string]any{}}
	if trees[formatName] == nil {
		return nil, errors.New("the template is empty")
	}
	c.node(trees[formatName].Root, typ)
	f.trees, f.keys = trees, c.keys
	return f, c.err
}

// Print prints a line for each row.
func (f *Format) Print(out io.Writer, rows ...any) error {
	var text bytes.Buffer
	if f.table {
		if err := f.line(&text, f.header(f.typ, "")); err != nil {
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
	x := &execution{trees: f.trees, out: text}
	if err := x.execute(f.trees[formatName], data); err != nil {
		return err
	}
	text.WriteByte('\n')
	return nil
}

// data returns a row as its JSON has it, with the omitted fields added.
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
	return fill(v, f.typ), nil
}

// fill adds fields that JSON omits. t is the original type of v, nil if unknown.
func fill(v any, t reflect.Type) any {
	if t != nil && t.Kind() == reflect.Pointer {
		if v == nil {
			return nil
		}
		t = t.Elem()
	}
	switch had := v.(type) {
	case nil:
		return empty(t)
	case json.Number:
		return number(had)
	case []any:
		var each reflect.Type
		if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
			each = t.Elem()
		}
		list := make([]any, len(had))
		for i := range had {
			list[i] = fill(had[i], each)
		}
		return list
	case map[string]any:
		o := &object{fields: map[string]any{}, raw: had}
		var each reflect.Type
		switch {
		case t != nil && t.Kind() == reflect.Map:
			each = t.Elem()
		case t != nil && t.Kind() == reflect.Struct && !opaque(t):
			for name, field := range jsonFields(t) {
				o.fields[name] = fill(had[name], field)
			}
			return o
		}
		for name := range had {
			o.fields[name] = fill(had[name], each)
		}
		return o
	}
	return v
}

// empty returns the value of an omitted field: 0 for a number, false for a flag, otherwise nil.
func empty(t reflect.Type) any {
	if t == nil || opaque(t) {
		return nil
	}
	switch {
	case t.Kind() == reflect.Bool:
		return false
	case t.ConvertibleTo(reflect.TypeFor[float64]()):
		return int64(0)
	}
	return nil
}

// number converts a number for comparing and printing.
func number(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	d, _ := n.Float64() // JSON has no other numbers
	return d
}

// opaque reports whether values of a type are a string or a number in JSON, whatever their fields.
func opaque(t reflect.Type) bool {
	for _, way := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(way) || reflect.PointerTo(t).Implements(way) {
			return true
		}
	}
	return false
}

// jsonFields returns the fields of a struct by their JSON names.
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
			for name, typ := range jsonFields(inner) {
				if _, shadowed := all[name]; !shadowed {
					all[name] = typ
				}
			}
		case field.IsExported() && name != "-" && name != "":
			all[name] = field.Type
		}
	}
	return all
}

// header returns a row that has the name of each field as its value.
func (f *Format) header(t reflect.Type, name string) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	title := strings.ToUpper(strings.ReplaceAll(name, "_", " "))
	switch {
	case t.Kind() == reflect.Map:
		return &object{fields: f.keys, title: title}
	case t.Kind() != reflect.Struct || opaque(t):
		return title
	}
	o := &object{fields: map[string]any{}, title: title}
	for name, field := range jsonFields(t) {
		o.fields[name] = f.header(field, name)
	}
	return o
}

// formatCheck walks a template, replaces field names by their JSON names, and finds unknown fields.
type formatCheck struct {
	variables map[string]reflect.Type
	keys      map[string]any
	err       error
}

// node checks a part of a template where . has the type dot, nil if unknown.
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

// pipe checks a pipeline and returns the type of its value, nil if unknown.
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

// fields checks a chain of fields of a value, and returns the type of the last.
func (c *formatCheck) fields(names []string, typ reflect.Type) reflect.Type {
	for i := range names {
		for typ != nil && typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ == nil || typ.Kind() == reflect.Interface {
			return nil
		}
		var next reflect.Type
		switch {
		case opaque(typ):
		case typ.Kind() == reflect.Map:
			next = typ.Elem()
			c.keys[names[i]] = strings.ToUpper(names[i])
		case typ.Kind() == reflect.Struct:
			for name, field := range jsonFields(typ) {
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
		typ = next
	}
	return typ
}

// spelling normalizes a name, so that all spellings of a field are equal.
func spelling(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
