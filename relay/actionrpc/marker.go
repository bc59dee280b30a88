// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd-dev/boxd/internal/durable"
)

// Marker is the path of a file that exists while LangBot's own admission is required: then a boxd that starts admits no
// Workspace until LangBot's next INIT. "" is none.
type Marker string

// MarkerFile is its name in the state directory.
const MarkerFile = "langbot-admission"

// Set creates or removes the file.
func (m Marker) Set(required bool) error {
	if m == "" {
		return nil
	}
	if !required {
		if err := os.Remove(string(m)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note that LangBot's admission is not required: %w", err)
		}
		return nil
	}
	dir, err := os.OpenRoot(filepath.Dir(string(m)))
	if err == nil {
		err = durable.SyncJSON(dir, filepath.Base(string(m)), struct{}{}) // a power failure must not admit anything
		dir.Close()
	}
	if err != nil {
		return fmt.Errorf("note that LangBot's admission is required: %w", err)
	}
	return nil
}

// Init returns the configuration before the first INIT. A file that cannot be checked counts as present.
func (m Marker) Init() *InitConfig {
	if m == "" {
		return DefaultInit()
	}
	if _, err := os.Lstat(string(m)); errors.Is(err, fs.ErrNotExist) {
		return DefaultInit()
	}
	return RequiredInit()
}
