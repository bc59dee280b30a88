// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/output"
)

// EnvironmentFile returns a memory file with values that are in no record, for PID 1 of the box to keep: the environment,
// followed by the waiting executions.
func EnvironmentFile(env []string, waiting []json.RawMessage) (*os.File, error) {
	var text any = env
	if slices.ContainsFunc(env, func(kv string) bool { return !utf8.ValidString(kv) }) { // JSON cannot carry it
		list := make([][]byte, len(env))
		for i, kv := range env {
			list[i] = []byte(kv)
		}
		text = inBytes{list}
	}
	data, err := json.Marshal(text)
	if err == nil && len(waiting) > 0 {
		var more []byte
		more, err = json.Marshal(waiting)
		data = append(append(data, '\n'), more...)
	}
	if err != nil {
		return nil, fmt.Errorf("environment of the session: %w", err)
	}
	fd, err := fdpass.BytesFile("environment", data)
	if err != nil {
		return nil, fmt.Errorf("environment of the session: %w", err)
	}
	return os.NewFile(uintptr(fd), "environment"), nil
}

// inBytes is an environment that is not all valid UTF-8.
type inBytes struct {
	Env [][]byte `json:"env"`
}

// maxEnvironment bounds what is read from PID 1, which is not trusted.
const maxEnvironment = 64 << 20

// ReadEnvironment reads what EnvironmentFile of this or an earlier version, or a hostile PID 1, has written, and closes f.
func ReadEnvironment(f *os.File) (env []string, waiting []json.RawMessage, err error) {
	if f == nil {
		return nil, nil, errors.New("the environment of the session is missing")
	}
	defer f.Close()
	if !output.IsMemory(int(f.Fd())) {
		return nil, nil, output.ErrNotMemory
	}
	d := json.NewDecoder(io.NewSectionReader(f, 0, maxEnvironment))
	var first json.RawMessage
	err = d.Decode(&first)
	if err == nil && bytes.HasPrefix(first, []byte("{")) {
		var list inBytes
		if err = json.Unmarshal(first, &list); err == nil && list.Env == nil {
			err = errors.New("not one")
		}
		for _, kv := range list.Env {
			env = append(env, string(kv))
		}
	} else if err == nil {
		err = json.Unmarshal(first, &env)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("environment of the session: %w", err)
	}
	if err := d.Decode(&waiting); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("waiting executions of the session: %w", err)
	}
	for _, kv := range env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.Contains(kv, "\x00") {
			return nil, nil, errors.New("environment of the session: invalid")
		}
	}
	return env, waiting, nil
}
