// SPDX-License-Identifier: Apache-2.0

// What comes in before an RPC is answered: its name, and the room and the time that its message has.

package e2b

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// Bounds of a message of an RPC, in bytes, as it is once it has been unpacked.
const (
	maxMessage = 8 << 20
	maxInput   = 1 << 20 // of one of those that come one after the other for as long as their client likes
)

// procedure is an RPC.
type procedure struct {
	reads   bool // it changes nothing
	streams bool // its answer is a stream
	input   bool // what it asks comes as a stream
}

// message is how many bytes one of its messages may have.
func (p procedure) message() int {
	if p.input {
		return maxInput
	}
	return maxMessage
}

// procedures are the RPCs there are, by their paths. Nothing but these is in metrics and records: a client can make up names
// without end.
func procedures() map[string]procedure {
	reading := []string{
		protocol.ProcessListProcedure, protocol.ProcessConnectProcedure, protocol.FilesystemStatProcedure, protocol.FilesystemListDirProcedure, protocol.FilesystemWatchDirProcedure,
		protocol.FilesystemCreateWatcherProcedure, protocol.FilesystemGetWatcherEventsProcedure, protocol.FilesystemRemoveWatcherProcedure,
	}
	all := map[string]procedure{}
	for _, file := range []protoreflect.FileDescriptor{protocol.File_process_proto, protocol.File_filesystem_proto, protocol.File_sandboxagent_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for k := range service.Methods().Len() {
				m := service.Methods().Get(k)
				path := "/" + string(service.FullName()) + "/" + string(m.Name())
				all[path] = procedure{reads: slices.Contains(reading, path), streams: m.IsStreamingServer(), input: m.IsStreamingClient()}
			}
		}
	}
	return all
}

// rpcs answers an RPC, once its record is sure.
func (s *Server) rpcs(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	what, ok := s.calls[r.URL.Path]
	if !ok {
		s.fail(w, r, refusal(http.StatusNotFound, "no RPC "+fault.Show(r.URL.Path))) // which Connect has clients take for unimplemented
		return
	}
	s.recorded(w, r, sb.pass, call{route: strings.TrimPrefix(r.URL.Path, "/"), session: sb.ID, alters: !what.reads}, func(w http.ResponseWriter, r *http.Request) error {
		body, release, err := s.bounded(w, r, sb, what)
		if err != nil {
			return err
		}
		defer release()
		r.Body = body
		s.rpc.ServeHTTP(w, r)
		return nil
	})
}

// bounded is the body of an RPC, which has its room among all that its caller sends: until it has been answered, or where that
// may take long, until all of it is there. release must follow.
func (s *Server) bounded(w http.ResponseWriter, r *http.Request, sb *sandbox, what procedure) (body io.ReadCloser, done func(), err error) {
	limit := int64(what.message())
	size := r.ContentLength
	if size < 0 || size > limit || what.input || packed(r) {
		size = limit // and what is longer is refused when it has been read so far
	}
	release, err := sb.limits.Reserve(r.Context(), size)
	if err != nil {
		return nil, nil, err
	}
	release = sync.OnceFunc(release)
	timed := &timedBody{ReadCloser: r.Body, conn: http.NewResponseController(w), release: func() {}}
	if !what.input {
		timed.until = time.Now().Add(bodyTimeout)
	}
	if what.streams {
		timed.release = release
	}
	return timed, release, nil
}

// packed reports whether a message may be larger than what is sent of it.
func packed(r *http.Request) bool {
	return slices.ContainsFunc([]string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"}, func(name string) bool {
		coding := r.Header.Get(name)
		return coding != "" && coding != "identity"
	})
}
