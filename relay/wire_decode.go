// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
)

// decodeStrictly reads one JSON object into the struct v points to. encoding/json alone is too lenient for a control
// plane: it accepts keys in any case, the last of several equal ones, null for anything, and text that is not UTF-8,
// which it changes; and its errors name no field. Here every key must be known, spelt exactly and given once, and every
// error names its field. Lists and maps are counted before they are allocated: an element of three bytes may take a
// hundred.
//
// Fields have two tags: max is the maximum number of elements of a list or map, and show:"never" keeps the value out of
// errors.
func decodeStrictly(data []byte, v any) error {
	data = bytes.Trim(data, " \t\r\n") // JSON's white space
	if len(data) == 0 {
		return fault.Field("body", fault.Word("empty"), "a JSON object")
	}
	if !json.Valid(data) {
		err := json.Unmarshal(data, new(json.RawMessage))
		f := fault.Errorf(fault.Invalid, "the body is not JSON: %w", err)
		f.Field, f.Allowed = "body", "a JSON object"
		return f
	}
	if err := decodeValue(data, reflect.ValueOf(v).Elem(), "", 0); err != nil {
		return err
	}
	if !isText(data) { // in a key: decodeValue checks the values
		return fault.Field("body", somethingElse, "text in UTF-8")
	}
	return nil
}

// isText reports whether every string in valid JSON is text: encoding/json replaces what is not, and a request would
// mean something that the client has not sent.
func isText(raw []byte) bool {
	if !utf8.Valid(raw) {
		return false
	}
	for {
		i := bytes.IndexByte(raw, '\\') // escapes occur only in strings
		if i < 0 {
			return true
		}
		if raw = raw[i+1:]; raw[0] != 'u' {
			raw = raw[1:]
			continue
		}
		first, second := escaped(raw), rune(0)
		if raw = raw[5:]; utf16.IsSurrogate(first) {
			if len(raw) > 6 && raw[0] == '\\' && raw[1] == 'u' {
				second = escaped(raw[1:])
			}
			if utf16.DecodeRune(first, second) == utf8.RuneError {
				return false
			}
			raw = raw[6:]
		}
	}
}

// escaped returns the code of a \u escape, from after its backslash.
func escaped(raw []byte) rune {
	n, err := strconv.ParseUint(string(raw[1:5]), 16, 16)
	if err != nil {
		return utf8.RuneError // not in valid JSON
	}
	return rune(n)
}

// decodeValue decodes valid JSON into v, which may have at most most elements; path names the field in errors.
func decodeValue(raw []byte, v reflect.Value, path string, limit int) error {
	_, custom := reflect.TypeAssert[json.Unmarshaler](v.Addr())
	switch {
	case custom:
	case v.Kind() == reflect.Pointer:
		if string(raw) == "null" {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(raw, v.Elem(), path, limit)
	case v.Kind() == reflect.Struct:
		return object(raw, path, func(key, field string, value []byte) error {
			return decodeField(value, v, key, field)
		})
	case v.Kind() == reflect.Map:
		return decodeMap(raw, v, path, limit)
	case v.Kind() == reflect.Slice:
		return decodeList(raw, v, path, limit)
	}
	if string(raw) == "null" {
		return fault.Field(path, fault.Word("null"), article(v.Kind()))
	}
	if !isText(raw) {
		return fault.Field(path, somethingElse, "text in UTF-8")
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		allowed := article(v.Kind())
		if custom {
			allowed = strings.TrimPrefix(err.Error(), "must be ") // fault.Field adds that itself
		}
		return fault.Field(path, given(raw), allowed)
	}
	return nil
}

func decodeField(raw []byte, v reflect.Value, key, path string) error {
	f, known := fieldNamed(v.Type(), key)
	if !known {
		known := strings.Join(fieldNames(v.Type()), ", ")
		return fault.Field(path, fault.Word("unknown"), known).WithText("unknown field %s (known: %s)", path, known)
	}
	err := decodeValue(raw, v.FieldByIndex(f.Index), path, mostOf(f))
	if err != nil && f.Tag.Get("show") == "never" {
		return fault.Field(path, somethingElse, "text in UTF-8")
	}
	return err
}

// fieldNamed finds the field of a key. Fields of an embedded struct belong to the outer one, as in encoding/json.
func fieldNamed(t reflect.Type, key string) (f reflect.StructField, known bool) {
	for f = range t.Fields() {
		if f.Anonymous {
			if inner, ok := fieldNamed(f.Type, key); ok {
				inner.Index = slices.Concat(f.Index, inner.Index)
				return inner, true
			}
			continue
		}
		if nameOf(f) == key {
			return f, true
		}
	}
	return f, false
}

// mostOf returns how many elements a field may have. A list without the tag may have none.
func mostOf(f reflect.StructField) int {
	limit, _ := strconv.Atoi(f.Tag.Get("max"))
	return limit
}

// decodeMap shows no value in its errors: it may be a secret.
func decodeMap(raw []byte, v reflect.Value, path string, limit int) error {
	if raw[0] != '{' {
		return fault.Field(path, somethingElse, "a JSON object")
	}
	if n := count(raw) / 2; n > limit {
		return tooMany(path, n, limit)
	}
	v.Set(reflect.MakeMap(v.Type()))
	return object(raw, path, func(key, field string, value []byte) error {
		e := reflect.New(v.Type().Elem()).Elem()
		if decodeValue(value, e, field, 0) != nil {
			return fault.Field(field, somethingElse, article(e.Kind()))
		}
		v.SetMapIndex(reflect.ValueOf(key), e)
		return nil
	})
}

func decodeList(raw []byte, v reflect.Value, path string, limit int) error {
	if raw[0] != '[' {
		return fault.Field(path, given(raw), "a list")
	}
	n := count(raw)
	if n > limit {
		return tooMany(path, n, limit)
	}
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	i := 0
	for e := range parts(raw) {
		if err := decodeValue(e, v.Index(i), fmt.Sprintf("%s[%d]", path, i), 0); err != nil {
			return err
		}
		i++
	}
	return nil
}

func tooMany(path string, n, limit int) error {
	return fault.Field(path, fault.Word(strconv.Itoa(n)+" elements"), fmt.Sprintf("at most %d", limit)).WithText("%s has %d elements: must have at most %d", path, n, limit)
}

// object calls f for every key of a JSON object, each of which may occur once. An error of f ends it, so that it
// remembers no more keys than f accepts.
func object(raw []byte, path string, f func(key, field string, value []byte) error) error {
	if raw[0] != '{' {
		return fault.Field(cmp.Or(path, "body"), given(raw), "a JSON object")
	}
	seen := map[string]bool{}
	var name []byte // of the next value
	for part := range parts(raw) {
		if name == nil {
			name = part
			continue
		}
		var key string
		if err := json.Unmarshal(name, &key); err != nil {
			return fmt.Errorf("valid JSON does not parse: %w", err)
		}
		name = nil
		field := strings.TrimPrefix(path+"."+string(truncated(key)), ".")
		if seen[key] {
			return fault.Field(field, fault.Word("given twice"), "given once")
		}
		seen[key] = true
		if err := f(key, field, part); err != nil {
			return err
		}
	}
	return nil
}

func fieldNames(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if !f.Anonymous {
			names = append(names, nameOf(f))
		}
	}
	slices.Sort(names)
	return names
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// article names a JSON type in an error text.
func article(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint32:
		return "a whole number"
	default:
		return "a number"
	}
}
