// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

// decodeBase64Into replaces the base64 fields of a request by what they encode: from there on a string holds bytes, as
// the kernel takes them.
func decodeBase64Into(v any) error {
	switch r := v.(type) {
	case *api.ExecRequest:
		return decodeExecBase64("", r)
	case *api.OneShotRequest:
		if err := decodeSessionBase64("session.", &r.Session); err != nil {
			return err
		}
		return decodeExecBase64("exec.", &r.Exec)
	case *api.SessionRequest:
		return decodeSessionBase64("", r)
	case *api.ProcessRequest:
		err := decodeBase64("", r.Base64, &r.Argv, &r.Command, &r.Code, &r.Cwd, &r.Env)
		r.Base64 = nil
		return err
	case *api.MountRequest:
		return decodePaths("", &r.Source, &r.SourceBase64, &r.Target, &r.TargetBase64)
	case *api.StreamStart:
		if r.Session != nil {
			if err := decodeSessionBase64("start.session.", r.Session); err != nil {
				return err
			}
		}
		return decodeExecBase64("start.exec.", &r.Exec)
	}
	return nil
}

func decodeExecBase64(prefix string, r *api.ExecRequest) error {
	err := decodeBase64(prefix, r.Base64, &r.Argv, &r.Command, &r.Code, &r.Cwd, &r.Env)
	r.Base64 = nil
	return err
}

func decodeSessionBase64(prefix string, r *api.SessionRequest) error {
	b := r.Base64
	if b != nil && (b.Argv != nil || b.Command != nil || b.Code != nil || b.Cwd != "") {
		return fault.Field(prefix+"base64", fault.Word("given"), "an object with env only, for a session")
	}
	err := decodeBase64(prefix, b, nil, nil, nil, nil, &r.Env)
	r.Base64 = nil
	for i := range r.Mounts {
		m := &r.Mounts[i]
		err = cmp.Or(err, decodePaths(fmt.Sprintf("%smounts[%d].", prefix, i), &m.Source, &m.SourceBase64, &m.Target, &m.TargetBase64))
	}
	for i := range r.Inputs {
		in := &r.Inputs[i]
		err = cmp.Or(err, decodePaths(fmt.Sprintf("%sinputs[%d].", prefix, i), new(string), new(string), &in.Target, &in.TargetBase64))
	}
	return err
}

// decodePaths replaces the paths of a mount by what is given of them in base64.
func decodePaths(prefix string, source, sourceBase64, target, targetBase64 *string) error {
	for _, p := range []struct {
		name       string
		text, from *string
	}{{"source", source, sourceBase64}, {"target", target, targetBase64}} {
		if *p.from == "" {
			continue
		}
		path, err := requestPath(prefix+p.name, *p.text, *p.from, "")
		if err != nil {
			return err
		}
		*p.text, *p.from = string(path), ""
	}
	return nil
}

func decodeBase64(prefix string, b *api.InBase64, argv *[]string, command, code **string, cwd *string, env *map[string]string) error {
	if b == nil {
		return nil
	}
	field := prefix + "base64."
	if b.Argv != nil {
		if *argv != nil {
			return givenTwice(field + "argv")
		}
		for i, text := range b.Argv {
			arg, err := decoded(fmt.Sprintf("%sargv[%d]", field, i), text)
			if err != nil {
				return err
			}
			*argv = append(*argv, arg)
		}
	}
	for _, f := range []struct {
		name string
		from *string
		to   **string
	}{{"command", b.Command, command}, {"code", b.Code, code}} {
		if f.from == nil {
			continue
		}
		if *f.to != nil {
			return givenTwice(field + f.name)
		}
		text, err := decoded(field+f.name, *f.from)
		if err != nil {
			return err
		}
		*f.to = &text
	}
	if b.Cwd != "" {
		if *cwd != "" {
			return givenTwice(field + "cwd")
		}
		var err error
		if *cwd, err = decoded(field+"cwd", b.Cwd); err != nil {
			return err
		}
	}
	for i, text := range b.Env {
		variable, err := decoded(fmt.Sprintf("%senv[%d]", field, i), text)
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(variable, "=")
		if _, given := (*env)[name]; !ok || given {
			return fault.Field(fmt.Sprintf("%senv[%d]", field, i), text, "NAME=value in base64, each name once")
		}
		if *env == nil {
			*env = map[string]string{}
		}
		(*env)[name] = value
	}
	return nil
}

func decoded(field, text string) (string, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", fault.Field(field, text, "bytes in base64")
	}
	return string(data), nil
}

func givenTwice(field string) error {
	return fault.Field(field, fault.Word("given"), "left out with the field it replaces")
}
