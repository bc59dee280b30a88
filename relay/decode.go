// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/quantity"
)

// bodyPatience is how long a body may take to arrive.
const bodyPatience = time.Minute

// decodeBody reads the JSON body of a request into v.
func (c *call) decodeBody(v any) error {
	conn := http.NewResponseController(c.w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyPatience)) // every connection of ours has deadlines
	defer conn.SetReadDeadline(time.Time{})                //nolint:errcheck // as above
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.Field("body", fmt.Sprintf("more than %d bytes", tooLarge.Limit), fmt.Sprintf("at most %v", quantity.Size(maxBody)))
	}
	if err != nil {
		return fault.Errorf(fault.Invalid, "read the body: %w", err)
	}
	return decode(data, v)
}

// decode reads one JSON object into the struct v points to. encoding/json alone is too lenient for a
// control plane: it takes keys in any case, the last of several equal ones, null for anything, and text
// that is no UTF-8, of which it makes other text; and its errors name no field. Here every key must be
// known, spelt exactly and given once, and every error says which field it is about.
func decode(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return fault.Errorf(fault.Invalid, "the body is empty, want a JSON object")
	}
	if !json.Valid(data) {
		err := json.Unmarshal(data, new(json.RawMessage))
		return fault.Errorf(fault.Invalid, "the body is not JSON: %w", err)
	}
	if err := decodeValue(data, reflect.ValueOf(v).Elem(), ""); err != nil {
		return err
	}
	if !isText(data) { // in a key: decodeValue knows the values
		return fault.Errorf(fault.Invalid, "the body is not UTF-8 text")
	}
	return nil
}

// isText reports whether every string in valid JSON is text: encoding/json replaces what is not, and a
// request would mean something that nobody has sent.
func isText(raw []byte) bool {
	if !utf8.Valid(raw) {
		return false
	}
	for {
		i := bytes.IndexByte(raw, '\\') // escapes are in strings alone
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

// escaped is the number of an escape, after its backslash.
func escaped(raw []byte) rune {
	n, err := strconv.ParseUint(string(raw[1:5]), 16, 16)
	if err != nil {
		return utf8.RuneError // not in valid JSON
	}
	return rune(n)
}

// decodeValue reads valid JSON into v; path names the field in errors.
func decodeValue(raw json.RawMessage, v reflect.Value, path string) error {
	_, custom := reflect.TypeAssert[json.Unmarshaler](v.Addr())
	switch {
	case custom:
	case v.Kind() == reflect.Pointer:
		if string(raw) == "null" {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(raw, v.Elem(), path)
	case v.Kind() == reflect.Struct:
		return object(raw, path, func(key, field string, value json.RawMessage) error {
			f, known := fieldOf(v, key)
			if !known {
				return fault.Field(field, "unknown", strings.Join(fieldNames(v.Type()), ", "))
			}
			return decodeValue(value, f, field)
		})
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		if raw[0] != '{' {
			return fault.Field(path, "something else", "a JSON object") // it may hold a secret, as may a value
		}
		return object(raw, path, func(key, field string, value json.RawMessage) error {
			e := reflect.New(v.Type().Elem()).Elem()
			if decodeValue(value, e, field) != nil {
				return fault.Field(field, "something else", article(e.Kind()))
			}
			v.SetMapIndex(reflect.ValueOf(key), e)
			return nil
		})
	case v.Kind() == reflect.Slice:
		var list []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
			return fault.Field(path, string(raw), "a list")
		}
		v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
		for i, e := range list {
			if err := decodeValue(e, v.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if string(raw) == "null" {
		return fault.Field(path, "null", article(v.Kind()))
	}
	if !isText(raw) {
		return fault.Field(path, strings.Trim(string(raw), `"`), "text in UTF-8")
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		allowed := article(v.Kind())
		if custom {
			allowed = strings.TrimPrefix(err.Error(), "not ")
		}
		return fault.Field(path, strings.Trim(string(raw), `"`), allowed)
	}
	return nil
}

// object calls f for every key of a JSON object, each of which may come once.
func object(raw json.RawMessage, path string, f func(key, field string, value json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		if path == "" {
			path = "body"
		}
		return fault.Field(path, string(raw), "a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("valid JSON does not parse: %w", err)
		}
		key, _ := t.(string)
		field := strings.TrimPrefix(path+"."+key, ".")
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("valid JSON does not parse: %w", err)
		}
		if seen[key] {
			return fault.Field(field, "given twice", "every field once")
		}
		seen[key] = true
		if err := f(key, field, value); err != nil {
			return err
		}
	}
	return nil
}

func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if nameOf(v.Type().Field(i)) == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = nameOf(t.Field(i))
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
	case reflect.Int, reflect.Uint32:
		return "a whole number"
	default:
		return "a number"
	}
}
