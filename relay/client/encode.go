// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/relay/api"
)

// ErrNotText means that a request has a string that is not UTF-8, which JSON cannot carry.
var ErrNotText = errors.New("the request has text that is not UTF-8")

// encode encodes a request as JSON. For a byte that is not UTF-8 encoding/json writes the escape \ufffd, which would
// change the request; a real U+FFFD it writes literally. Fields that may hold bytes are sent in base64 then.
func encode(v any) ([]byte, error) {
	data, err := encodeText(v)
	if errors.Is(err, ErrNotText) {
		if other := inBase64(v); other != nil {
			return encodeText(other)
		}
	}
	return data, err
}

func encodeText(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	for rest := data; ; {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 {
			return data, nil
		}
		if bytes.HasPrefix(rest[i:], []byte(`\ufffd`)) {
			return nil, ErrNotText
		}
		rest = rest[i+2:] // past the escaped character: it may be a backslash
	}
}

// inBase64 returns a request with its non-UTF-8 strings in base64; nil: it has no fields for that.
func inBase64(v any) any {
	switch r := v.(type) {
	case *api.ExecRequest:
		return execInBase64(r)
	case *api.OneShotRequest:
		return &api.OneShotRequest{Session: *sessionInBase64(&r.Session), Exec: *execInBase64(&r.Exec)}
	case *api.SessionRequest:
		return sessionInBase64(r)
	case *api.ProcessRequest:
		c := *r
		c.Base64 = convert(&c.Argv, &c.Command, &c.Code, &c.Cwd, &c.Env)
		return &c
	case *api.ClientControl:
		if r.Start == nil {
			return nil
		}
		c, start := *r, *r.Start
		start.Exec = *execInBase64(&start.Exec)
		if start.Session != nil {
			start.Session = sessionInBase64(start.Session)
		}
		c.Start = &start
		return &c
	}
	return pathsInBase64(v)
}

func execInBase64(r *api.ExecRequest) *api.ExecRequest {
	c := *r
	c.Base64 = convert(&c.Argv, &c.Command, &c.Code, &c.Cwd, &c.Env)
	return &c
}

func sessionInBase64(r *api.SessionRequest) *api.SessionRequest {
	c := *r
	c.Base64 = convert(nil, nil, nil, nil, &c.Env)
	c.Mounts, c.Inputs = eachInBase64(c.Mounts), eachInBase64(c.Inputs)
	return &c
}

// eachInBase64 returns a list with non-UTF-8 paths in base64.
func eachInBase64[T any](list []T) []T {
	list = slices.Clone(list)
	for i := range list {
		if other, ok := pathsInBase64(&list[i]).(*T); ok {
			list[i] = *other
		}
	}
	return list
}

// convert moves non-UTF-8 strings from fields to base64.
func convert(argv *[]string, command, code **string, cwd *string, env *map[string]string) *api.InBase64 {
	var b api.InBase64
	if argv != nil && slices.ContainsFunc(*argv, func(arg string) bool { return !utf8.ValidString(arg) }) {
		for _, arg := range *argv {
			b.Argv = append(b.Argv, encoded(arg))
		}
		*argv = nil
	}
	for _, f := range []struct{ from, to **string }{{command, &b.Command}, {code, &b.Code}} {
		if f.from != nil && *f.from != nil && !utf8.ValidString(**f.from) {
			*f.to, *f.from = new(encoded(**f.from)), nil
		}
	}
	if cwd != nil && !utf8.ValidString(*cwd) {
		b.Cwd, *cwd = encoded(*cwd), ""
	}
	plain := map[string]string{}
	for name, value := range *env {
		if utf8.ValidString(name) && utf8.ValidString(value) {
			plain[name] = value
		} else {
			b.Env = append(b.Env, encoded(name+"="+value))
		}
	}
	if len(plain) == 0 {
		plain = nil
	}
	*env = plain
	slices.Sort(b.Env)
	if reflect.ValueOf(b).IsZero() {
		return nil
	}
	return &b
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// pathsInBase64 moves the paths of a file request to the fields for base64, which have the same names with Base64
// appended.
func pathsInBase64(v any) any {
	from := reflect.Indirect(reflect.ValueOf(v))
	if from.Kind() != reflect.Struct {
		return nil
	}
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	found := false
	for i := range from.NumField() {
		field := from.Type().Field(i)
		base64Field := to.Elem().FieldByName(field.Name + "Base64")
		if !base64Field.IsValid() || base64Field.Type() != field.Type {
			continue
		}
		switch text := from.Field(i); text.Kind() {
		case reflect.String:
			if !utf8.ValidString(text.String()) {
				base64Field.SetString(encoded(text.String()))
				to.Elem().Field(i).SetString("")
				found = true
			}
		case reflect.Slice:
			list, ok := reflect.TypeAssert[[]string](text)
			if !ok {
				continue
			}
			var plain, moved []string
			for _, s := range list {
				if utf8.ValidString(s) {
					plain = append(plain, s)
				} else {
					moved = append(moved, encoded(s))
				}
			}
			if moved != nil {
				to.Elem().Field(i).Set(reflect.ValueOf(plain))
				base64Field.Set(reflect.ValueOf(moved))
				found = true
			}
		default:
		}
	}
	if !found {
		return nil
	}
	return to.Interface()
}
