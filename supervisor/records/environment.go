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

// EnvironmentFile returns a memory file with the values that no record has, for PID 1 of the box to keep.
func EnvironmentFile(env []string) (*os.File, error) {
	data, err := json.Marshal(env)
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
const maxEnvironment = 4 << 20

// ReadEnvironment reads what EnvironmentFile has written, or a hostile PID 1, and closes it.
func ReadEnvironment(f *os.File) (env []string, err error) {
	if f == nil {
		return nil, errors.New("the environment of the session is not there")
	}
	defer f.Close()
	if !output.IsMemory(int(f.Fd())) {
		return nil, output.ErrNotMemory
	}
	if err := json.NewDecoder(io.NewSectionReader(f, 0, maxEnvironment)).Decode(&env); err != nil {
		return nil, fmt.Errorf("environment of the session: %w", err)
	}
	for _, kv := range env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.Contains(kv, "\x00") {
			return nil, errors.New("environment of the session: not one")
		}
	}
	return env, nil
}
