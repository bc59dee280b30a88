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

// Marker is a file that is there while LangBot's own admission is required: a boxd that starts admits nobody then, until
// LangBot has told it anew. "" is none.
type Marker string

// MarkerFile is its name in the state directory.
const MarkerFile = "langbot-admission"

// Set makes the file be there, or not.
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
		err = durable.SyncJSON(dir, filepath.Base(string(m)), struct{}{}) // a loss of power is not to admit anybody
		dir.Close()
	}
	if err != nil {
		return fmt.Errorf("note that LangBot's admission is required: %w", err)
	}
	return nil
}

// Init is what holds before the first INIT. What cannot be looked at is taken to be there.
func (m Marker) Init() *InitConfig {
	if m == "" {
		return DefaultInit()
	}
	if _, err := os.Lstat(string(m)); errors.Is(err, fs.ErrNotExist) {
		return DefaultInit()
	}
	return RequiredInit()
}
