// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// FilesSocket is the socket of boxd-files.service, which opens for boxd, who is not root, the files of root that its configuration names.
const FilesSocket = "/run/boxd/files.sock"

// filesTimeout is how long that service may take, which systemd may have to start.
const filesTimeout = 10 * time.Second

// MaxFileMessage is the largest size of a FileRequest and a FileReply, in bytes.
const MaxFileMessage = 16 << 10

// FileRequest asks boxd-files.service for a file.
type FileRequest struct {
	Path     string `json:"path"`
	NoFollow bool   `json:"no_follow,omitempty"` // a symbolic link is an error
}

// FileReply is the answer, with the descriptor of the file if there is no error.
type FileReply struct {
	Errno unix.Errno `json:"errno,omitempty"`
	Why   string     `json:"why,omitempty"` // why the service does not open it, whatever the kernel would say
}

// Open opens a file for reading. If this user may not and boxd-files.service may, it has that open it.
func Open(path string) (*os.File, error) { return OpenAt(FilesSocket, path) }

// OpenAt is Open with the socket of the service.
func OpenAt(service, path string) (*os.File, error) { return open(&FileRequest{Path: path}, service) }

func open(req *FileRequest, service string) (*os.File, error) {
	f, err := req.Open()
	if !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	handed, reply, herr := req.request(service)
	switch {
	case herr != nil:
		return nil, err
	case reply.Why != "":
		return nil, &fs.PathError{Op: "open", Path: req.Path, Err: errors.New(reply.Why)}
	case reply.Errno != 0:
		return nil, &fs.PathError{Op: "open", Path: req.Path, Err: reply.Errno}
	}
	return handed, nil
}

// Open opens the file as this user. It does not wait for the writer of a FIFO.
func (r *FileRequest) Open() (*os.File, error) {
	flags := os.O_RDONLY | unix.O_NONBLOCK
	if r.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	return os.OpenFile(r.Path, flags, 0)
}

// request has a service open the file.
func (r *FileRequest) request(service string) (*os.File, *FileReply, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(filesTimeout.Nanoseconds())
	body, err := json.Marshal(r)
	if err == nil {
		err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
	}
	if err == nil {
		err = Again(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: service}) })
	}
	if err == nil {
		err = Again(func() error { return unix.Sendmsg(fd, body, nil, nil, unix.MSG_NOSIGNAL) })
	}
	if err != nil {
		return nil, nil, os.NewSyscallError("ask "+service, err)
	}
	body, rights := make([]byte, MaxFileMessage), make([]byte, unix.CmsgSpace(4))
	n, oobn := 0, 0
	err = Again(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(fd, body, rights, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, nil, os.NewSyscallError("ask "+service, err)
	}
	var files []int
	if messages, perr := unix.ParseSocketControlMessage(rights[:oobn]); perr == nil && len(messages) == 1 {
		files, _ = unix.ParseUnixRights(&messages[0])
	}
	reply := &FileReply{}
	err = json.Unmarshal(body[:n], reply)
	if handed := reply.Errno == 0 && reply.Why == ""; err == nil && handed != (len(files) == 1) {
		err = errors.New("malformed answer")
	}
	if err != nil || len(files) == 0 {
		for _, f := range files {
			unix.Close(f)
		}
		return nil, reply, err
	}
	return os.NewFile(uintptr(files[0]), r.Path), reply, nil
}

// Again calls f until a signal does not interrupt it: where a socket has a timeout, the kernel continues no call after one (signal(7)), and
// Go's runtime sends signals to its threads.
func Again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ReadFile reads a file of at most limit bytes that Open opens.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}
