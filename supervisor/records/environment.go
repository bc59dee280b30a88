// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/output"
)

// EnvironmentFile returns a memory file with the values that no record has, for PID 1 of the box to keep: the
// environment, and behind it the executions that wait.
func EnvironmentFile(env []string, waiting []json.RawMessage) (*os.File, error) {
	data, err := json.Marshal(env)
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

// maxEnvironment bounds what is read of PID 1, which is not trusted.
const maxEnvironment = 64 << 20

// ReadEnvironment reads what EnvironmentFile has written, of this version or an earlier one, or a hostile PID
// 1, and closes it.
func ReadEnvironment(f *os.File) (env []string, waiting []json.RawMessage, err error) {
	if f == nil {
		return nil, nil, errors.New("the environment of the session is not there")
	}
	defer f.Close()
	if !output.IsMemory(int(f.Fd())) {
		return nil, nil, output.ErrNotMemory
	}
	d := json.NewDecoder(io.NewSectionReader(f, 0, maxEnvironment))
	if err := d.Decode(&env); err != nil {
		return nil, nil, fmt.Errorf("environment of the session: %w", err)
	}
	if err := d.Decode(&waiting); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("waiting executions of the session: %w", err)
	}
	for _, kv := range env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.Contains(kv, "\x00") {
			return nil, nil, errors.New("environment of the session: not one")
		}
	}
	return env, waiting, nil
}
