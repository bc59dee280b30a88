// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/boxd-dev/boxd/quantity"
)

// Templates have the syntax of text/template, which is not used for execution: it calls methods by name, for which the
// linker would keep every method of every type, and boxctl would grow by half. Here values are only what JSON has: nil,
// bool, int64, float64, string, []any and object.

// object is a JSON object, with omitted fields added.
type object struct {
	fields map[string]any
	raw    any    // without the added fields, for the function json
	title  string // how it prints in a header
}

// maxTemplates limits nested template calls.
const maxTemplates = 64

// execution is a running template.
type execution struct {
	trees     map[string]*parse.Tree
	out       *bytes.Buffer
	variables []variable
	depth     int
}

type variable struct {
	name  string
	value any
}

var (
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// execute runs a template on a value.
func (x *execution) execute(tree *parse.Tree, dot any) error {
	outer := x.variables
	defer func() { x.variables = outer }()
	x.variables = []variable{{"$", dot}}
	if tree.Root == nil {
		return nil
	}
	return x.walk(tree.Root, dot)
}

func (x *execution) walk(n parse.Node, dot any) error {
	switch n := n.(type) {
	case *parse.ListNode:
		for _, part := range n.Nodes {
			if err := x.walk(part, dot); err != nil {
				return err
			}
		}
		return nil
	case *parse.TextNode:
		x.out.Write(n.Text)
		return nil
	case *parse.ActionNode:
		v, err := x.pipe(n.Pipe, dot)
		if err == nil && len(n.Pipe.Decl) == 0 {
			x.out.WriteString(printed(v))
		}
		return err
	case *parse.IfNode:
		return x.branch(&n.BranchNode, dot, func(any) any { return dot })
	case *parse.WithNode:
		return x.branch(&n.BranchNode, dot, func(v any) any { return v })
	case *parse.RangeNode:
		return x.each(n, dot)
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	case *parse.TemplateNode:
		return x.call(n, dot)
	}
	return fmt.Errorf("%s: not supported", n)
}

// branch runs if and with, which differ in the value of . inside.
func (x *execution) branch(n *parse.BranchNode, dot any, inside func(any) any) error {
	defer x.leave(len(x.variables))
	v, err := x.pipe(n.Pipe, dot)
	switch {
	case err != nil:
		return err
	case truth(v):
		return x.walk(n.List, inside(v))
	case n.ElseList != nil:
		return x.walk(n.ElseList, dot)
	}
	return nil
}

// leave drops the variables of a block.
func (x *execution) leave(n int) { x.variables = x.variables[:n] }

func (x *execution) each(n *parse.RangeNode, dot any) error {
	defer x.leave(len(x.variables))
	v, err := x.pipe(n.Pipe, dot)
	if err != nil {
		return err
	}
	var keys, values []any
	switch v := v.(type) {
	case nil:
	case []any:
		for i := range v {
			keys = append(keys, int64(i))
		}
		values = v
	case *object:
		for _, key := range slices.Sorted(maps.Keys(v.fields)) {
			keys, values = append(keys, key), append(values, v.fields[key])
		}
	default:
		return fmt.Errorf("%s: range needs a list or an object, not %s", n.Pipe, kind(v))
	}
	if len(values) == 0 && n.ElseList != nil {
		return x.walk(n.ElseList, dot)
	}
	for i := range values {
		switch decl := n.Pipe.Decl; len(decl) {
		case 1:
			x.set(decl[0].Ident[0], values[i])
		case 2:
			x.set(decl[0].Ident[0], keys[i])
			x.set(decl[1].Ident[0], values[i])
		}
		here := len(x.variables)
		err := x.walk(n.List, values[i])
		x.leave(here)
		if errors.Is(err, errBreak) {
			return nil
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	return nil
}

func (x *execution) call(n *parse.TemplateNode, dot any) error {
	tree := x.trees[n.Name]
	if tree == nil {
		return fmt.Errorf("there is no template %q", n.Name)
	}
	if x.depth++; x.depth > maxTemplates {
		return fmt.Errorf("template %q: templates call one another more than %d deep", n.Name, maxTemplates)
	}
	defer func() { x.depth-- }()
	v, err := x.pipe(n.Pipe, dot)
	if err != nil {
		return err
	}
	return x.execute(tree, v)
}

// set assigns to the innermost variable of a name.
func (x *execution) set(name string, v any) {
	for i := len(x.variables) - 1; i >= 0; i-- {
		if x.variables[i].name == name {
			x.variables[i].value = v
			return
		}
	}
}

// pipe returns the value of a pipeline, and assigns it to the variable that the pipeline declares or sets.
func (x *execution) pipe(p *parse.PipeNode, dot any) (v any, err error) {
	if p == nil {
		return nil, nil
	}
	for i, command := range p.Cmds {
		var last []any
		if i > 0 {
			last = []any{v}
		}
		if v, err = x.command(command, dot, last); err != nil {
			return nil, err
		}
	}
	for _, decl := range p.Decl {
		if p.IsAssign {
			x.set(decl.Ident[0], v)
		} else {
			x.variables = append(x.variables, variable{decl.Ident[0], v})
		}
	}
	return v, nil
}

// command returns the value of one command of a pipeline; last is the value of the previous one.
func (x *execution) command(n *parse.CommandNode, dot any, last []any) (any, error) {
	name, ok := n.Args[0].(*parse.IdentifierNode)
	if !ok {
		if len(n.Args) > 1 || last != nil {
			return nil, fmt.Errorf("%s: not a function", n.Args[0])
		}
		return x.operand(n.Args[0], dot)
	}
	var args []any
	for _, arg := range n.Args[1:] {
		v, err := x.operand(arg, dot)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	v, err := apply(name.Ident, append(args, last...))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n, err)
	}
	return v, nil
}

func (x *execution) operand(n parse.Node, dot any) (any, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.NilNode:
		return nil, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		if n.IsInt {
			return n.Int64, nil
		}
		return n.Float64, nil
	case *parse.FieldNode:
		return inside(dot, n.Ident)
	case *parse.VariableNode:
		for _, v := range slices.Backward(x.variables) {
			if v.name == n.Ident[0] {
				return inside(v.value, n.Ident[1:])
			}
		}
	case *parse.ChainNode:
		v, err := x.operand(n.Node, dot)
		if err != nil {
			return nil, err
		}
		return inside(v, n.Field)
	case *parse.PipeNode:
		return x.pipe(n, dot)
	case *parse.IdentifierNode:
		return apply(n.Ident, nil)
	}
	return nil, fmt.Errorf("%s: not supported", n)
}

// inside returns a nested field of a value. A missing value has missing fields.
func inside(v any, names []string) (any, error) {
	for _, name := range names {
		switch o := v.(type) {
		case nil:
			return nil, nil
		case *object:
			v = o.fields[name]
		default:
			return nil, fmt.Errorf("%s has no field .%s", kind(v), name)
		}
	}
	return v, nil
}

// truth reports whether if and with take a value as true.
func truth(v any) bool {
	switch v := v.(type) {
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case *object:
		return len(v.fields) > 0
	}
	return false
}

// kind names the kind of a value in messages.
func kind(v any) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case bool:
		return "true or false"
	case int64, float64:
		return "a number"
	case string:
		return "a text"
	case []any:
		return "a list"
	}
	return "an object"
}

// printed formats a value.
func printed(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []any:
		words := make([]string, len(v))
		for i := range v {
			words[i] = printed(v[i])
		}
		return "[" + strings.Join(words, " ") + "]"
	case *object:
		if v.title != "" {
			return v.title
		}
		var words []string
		for _, key := range slices.Sorted(maps.Keys(v.fields)) {
			words = append(words, key+":"+printed(v.fields[key]))
		}
		return "map[" + strings.Join(words, " ") + "]"
	}
	return fmt.Sprint(v)
}

// functionNames returns the functions that templates may call.
func functionNames() map[string]any {
	all := map[string]any{}
	for _, name := range []string{
		"and", "or", "not", "len", "index", "print", "println", "printf", "eq", "ne", "lt", "le", "gt", "ge", "json", "join", "split", "lower", "upper", "size",
	} {
		all[name] = name
	}
	return all
}

// apply calls a function.
func apply(name string, args []any) (any, error) {
	minimum, limit := 1, 1
	switch name {
	case "print", "println":
		minimum, limit = 0, len(args)
	case "and", "or", "index", "printf":
		limit = len(args)
	case "eq":
		minimum, limit = 2, len(args)
	case "ne", "lt", "le", "gt", "ge", "join", "split":
		minimum, limit = 2, 2
	}
	if len(args) < minimum || len(args) > max(limit, minimum) {
		return nil, fmt.Errorf("%d arguments for %s", len(args), name)
	}
	switch name {
	case "and", "or":
		for _, v := range args {
			if truth(v) == (name == "or") {
				return v, nil
			}
		}
		return args[len(args)-1], nil
	case "not":
		return !truth(args[0]), nil
	case "eq", "ne", "lt", "le", "gt", "ge":
		return compare(name, args)
	case "index":
		return index(args[0], args[1:])
	case "json":
		return asJSON(args[0])
	case "size":
		if n, ok := args[0].(int64); ok && n >= 0 {
			return quantity.Size(n).String(), nil
		}
		return printed(args[0]), nil // in a header it is the field's name
	case "join":
		return join(args[0], args[1])
	}
	return textFunction(name, args)
}

// textFunction calls a function on texts.
func textFunction(name string, args []any) (any, error) {
	switch name {
	case "print":
		return fmt.Sprint(printable(args)...), nil
	case "println":
		return fmt.Sprintln(printable(args)...), nil
	case "len":
		switch v := args[0].(type) {
		case nil:
			return int64(0), nil
		case string:
			return int64(len(v)), nil
		case []any:
			return int64(len(v)), nil
		case *object:
			return int64(len(v.fields)), nil
		}
		return nil, fmt.Errorf("%s has no length", kind(args[0]))
	}
	var text []string
	for i, arg := range args {
		if s, ok := arg.(string); ok || arg == nil {
			text = append(text, s)
		} else if name != "printf" || i == 0 {
			return nil, fmt.Errorf("%s needs a text, not %s", name, kind(arg))
		}
	}
	switch name {
	case "printf":
		return fmt.Sprintf(text[0], printable(args[1:])...), nil
	case "upper":
		return strings.ToUpper(text[0]), nil
	case "lower":
		return strings.ToLower(text[0]), nil
	case "split":
		var list []any
		for word := range strings.SplitSeq(text[0], text[1]) {
			list = append(list, word)
		}
		return list, nil
	}
	return nil, fmt.Errorf("no function %s", name)
}

// printable prepares values for fmt: numbers and strings unchanged, all else as a template prints it.
func printable(list []any) []any {
	list = slices.Clone(list)
	for i, v := range list {
		switch v.(type) {
		case bool, int64, float64, string:
		default:
			list[i] = printed(v)
		}
	}
	return list
}

// join joins the elements of a list. A header is returned unchanged.
func join(list, between any) (any, error) {
	separator, ok := between.(string)
	if !ok {
		return nil, fmt.Errorf("join needs a text between the elements, not %s", kind(between))
	}
	switch list := list.(type) {
	case nil, string:
		return printed(list), nil
	case []any:
		words := make([]string, len(list))
		for i := range list {
			words[i] = printed(list[i])
		}
		return strings.Join(words, separator), nil
	}
	return nil, fmt.Errorf("join needs a list, not %s", kind(list))
}

// index returns an element of a value.
func index(v any, keys []any) (any, error) {
	for _, key := range keys {
		switch o := v.(type) {
		case nil:
			return nil, nil
		case []any:
			i, ok := key.(int64)
			if !ok || i < 0 || i >= int64(len(o)) {
				return nil, fmt.Errorf("no element %s in a list of %d", printed(key), len(o))
			}
			v = o[i]
		case *object:
			name, ok := key.(string)
			if !ok {
				return nil, fmt.Errorf("an object is indexed by a text, not %s", kind(key))
			}
			v = o.fields[name]
		case string: // the name of a list in a header
			return o, nil
		default:
			return nil, fmt.Errorf("%s has no elements", kind(v))
		}
	}
	return v, nil
}

// compare runs a comparison function. A missing value equals the zero value of the other one.
func compare(name string, args []any) (any, error) {
	if name == "eq" && len(args) > 2 {
		for _, other := range args[1:] {
			same, err := compare("eq", []any{args[0], other})
			if same != false || err != nil {
				return same, err
			}
		}
		return false, nil
	}
	order, err := order(args[0], args[1])
	switch {
	case err != nil:
		return nil, err
	case name == "eq":
		return order == 0, nil
	case name == "ne":
		return order != 0, nil
	case name == "lt":
		return order < 0, nil
	case name == "le":
		return order <= 0, nil
	case name == "gt":
		return order > 0, nil
	}
	return order >= 0, nil
}

func order(a, b any) (int, error) {
	if a == nil || b == nil {
		return cmp.Compare(btoi(truth(a)), btoi(truth(b))), nil
	}
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return cmp.Compare(a, b), nil
		}
	case bool:
		if b, ok := b.(bool); ok {
			return cmp.Compare(btoi(a), btoi(b)), nil
		}
	case int64, float64:
		x, _ := asFloat(a)
		if y, ok := asFloat(b); ok {
			return cmp.Compare(x, y), nil
		}
	}
	return 0, fmt.Errorf("%s and %s do not compare", kind(a), kind(b))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// asJSON returns a value as JSON, without added fields.
func asJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(withoutAdded(v))
	return strings.TrimSuffix(b.String(), "\n"), err
}

func withoutAdded(v any) any {
	switch v := v.(type) {
	case *object:
		if v.title != "" {
			return v.title
		}
		return v.raw
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = withoutAdded(v[i])
		}
		return list
	}
	return v
}
