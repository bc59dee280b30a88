// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// A request that states its length in two ways is refused, and nothing that follows on its connection is read.
func TestARequestHasOneLength(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	const body = `{"argv":["echo","fine"]}`
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	head := func(more string) string {
		return "POST /v1/sessions/s/exec HTTP/1.1\r\nHost: boxd\r\nContent-Type: application/json\r\n" + more + "\r\n"
	}
	plain := head(fmt.Sprintf("Content-Length: %d\r\n", len(body))) + body
	for name, tc := range map[string]struct {
		pieces []string
		want   []int // 0: the connection is closed
	}{
		"chunked alone":         {[]string{head("Transfer-Encoding: chunked\r\n") + chunked}, []int{200}},
		"one after the other":   {[]string{plain, head("Transfer-Encoding: chunked\r\n") + chunked, plain}, []int{200, 200, 200}},
		"both":                  {[]string{head(fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n", len(chunked))) + chunked}, []int{400, 0}},
		"the other way round":   {[]string{head("Transfer-Encoding: chunked\r\ncontent-length: 5\r\n") + chunked}, []int{400, 0}},
		"in pieces":             {[]string{"POST /v1/sessions/s/exec HTTP/1.1\r\nHost: boxd\r\nTransfer-Encoding: chunked\r\nConte", "nt-Length: 4\r\n\r", "\n" + chunked}, []int{400, 0}},
		"after another":         {[]string{plain, head("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + chunked}, []int{200, 400, 0}},
		"a word of it":          {[]string{head("X-Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + chunked}, []int{200}},
		"in the body":           {[]string{head("Transfer-Encoding: chunked\r\n") + "19\r\n{\"argv\":[\"echo\",\"\\r\\nCont\r\n14\r\nent-Length: 5\\r\\n\"]}\r\n0\r\n\r\n"}, []int{200}},
		"together with another": {[]string{plain + head("Transfer-Encoding: chunked\r\n") + chunked}, []int{200, 400, 0}},
	} {
		conn, err := net.Dial("unix", d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		answers := bufio.NewReader(conn)
		answered := 0
		next := func() int {
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				return 0
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode
		}
		for i, piece := range tc.pieces {
			if _, err := io.WriteString(conn, piece); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if name == "in pieces" && i < len(tc.pieces)-1 {
				continue // whether they are read together or one by one
			}
			if answered < len(tc.want) {
				if got := next(); got != tc.want[answered] {
					t.Errorf("%s, %d: %d, want %d", name, answered, got, tc.want[answered])
				}
				answered++
			}
		}
		for ; answered < len(tc.want); answered++ {
			if got := next(); got != tc.want[answered] {
				t.Errorf("%s, %d: %d, want %d", name, answered, got, tc.want[answered])
			}
		}
		conn.Close()
	}
}
