// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/api"
)

func TestVersionsThatDifferAreTold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		boxd  string
		warns bool
	}{{version, false}, {"1.2.3", true}} {
		socket := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(api.Status{Version: tc.boxd})
		})}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = srv.Serve(ln) // until it is closed
		}()
		for _, args := range [][]string{{"version"}, {"version", "--json"}} {
			var out, errOut bytes.Buffer
			if code := realMain(append([]string{"--socket", socket}, args...), nil, &out, &errOut); code != 0 {
				t.Errorf("%v: code = %d, errOut = %s, want code == 0", args, code, errOut.String())
			}
			if warns := strings.Contains(errOut.String(), "the versions differ; 'systemctl restart boxd'"); warns != tc.warns {
				t.Errorf("%v of %s: errOut = %q, want warns == tc.warns", args, tc.boxd, errOut.String())
			}
			var found map[string]string
			if len(args) > 1 && (json.Unmarshal(out.Bytes(), &found) != nil || found["boxctl"] != version || found["boxd"] != tc.boxd) {
				t.Errorf(`out = %s, want len(args) <= 1 or json.Unmarshal(out.Bytes(), &found) == nil and found["boxctl"] == version and found["boxd"] == tc.boxd`,
					out.String())
			}
			if len(args) == 1 && out.String() != "boxctl  "+version+"\nboxd    "+tc.boxd+"\n" {
				t.Errorf(`out = %s, want len(args) != 1 or out.String() == "boxctl " + version + "\nboxd " + tc.boxd + "\n"`,
					out.String())
			}
		}
		srv.Close()
		<-ended
	}
}
