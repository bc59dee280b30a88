// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errExposed means that users other than the owner could read or change a file.
var errExposed = errors.New("users other than root can read or change it: must have mode 0600 and owner root")

// ReadSecret reads a file of at most most bytes. credential is for files of systemd's credentials, which their group may read. If
// the file does not exist the error is os.ErrNotExist.
func ReadSecret(path string, credential bool, limit int64) ([]byte, error) {
	f, err := open(&FileRequest{Path: path, NoFollow: true}, FilesSocket)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	shut := uint32(0o077)
	if credential {
		shut = 0o037
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is no regular file", path)
	case st.Mode&shut != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s: mode %#o, owner %d: %w", path, st.Mode&0o7777, st.Uid, errExposed)
	}
	return readAll(f, limit)
}

// readAll reads a file of at most limit bytes.
func readAll(f *os.File, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it is longer than %d bytes", limit)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return data, nil
}
