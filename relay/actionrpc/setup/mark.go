// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Mark is a file that is there while LangBot's own admission is required: a boxd that starts admits nobody then, until
// LangBot has told it anew. "" is none.
type Mark string

// MarkFile is its name in the state directory.
const MarkFile = "langbot-admission"

// Set makes the file be there, or not.
func (m Mark) Set(required bool) error {
	if m == "" {
		return nil
	}
	if !required {
		if err := os.Remove(string(m)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note that LangBot's admission is not required: %w", err)
		}
		return nil
	}
	f, err := os.OpenFile(string(m), os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("note that LangBot's admission is required: %w", err)
	}
	return nil
}

// Told is what holds before the first INIT. What cannot be looked at is taken to be there.
func (m Mark) Told() *Told {
	if m == "" {
		return Untold()
	}
	if _, err := os.Lstat(string(m)); errors.Is(err, fs.ErrNotExist) {
		return Untold()
	}
	return Left()
}
