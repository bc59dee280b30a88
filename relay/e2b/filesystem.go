// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"net/http"

	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// filesystemService is the files of a sandbox.
type filesystemService struct {
	server *Server
	protocol.UnimplementedFilesystemHandler
}

func (s *Server) files(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.fail(w, r, refusal(501, "not yet"))
}
