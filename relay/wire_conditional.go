// SPDX-License-Identifier: Apache-2.0

// Conditional requests for files (RFC 9110, section 13).

package relay

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/isolation/files"
)

// EntityTag returns a tag that changes with the size of a file and its modification time, which programs can set; two
// changes within a tick of the kernel (4 ms) may have the same tag.
func EntityTag(file *files.Entry) string {
	return fmt.Sprintf(`"%x-%x"`, file.Time.UnixNano(), file.Size)
}

// Precondition returns the status for a conditional request whose condition is false; 0: the file is sent (RFC 9110,
// section 13.2.2).
func Precondition(h http.Header, file *files.Entry) int {
	tag, modified := EntityTag(file), file.Time.Truncate(time.Second)
	since, err := http.ParseTime(h.Get("If-Unmodified-Since"))
	if match := h.Values("If-Match"); len(match) > 0 && !tagged(match, tag) || len(match) == 0 && err == nil && modified.After(since) {
		return http.StatusPreconditionFailed
	}
	since, err = http.ParseTime(h.Get("If-Modified-Since"))
	if match := h.Values("If-None-Match"); len(match) > 0 && (tagged(match, tag) || tagged(match, "W/"+tag)) || len(match) == 0 && err == nil && !modified.After(since) {
		return http.StatusNotModified
	}
	return 0
}

// tagged reports whether lists of entity tags contain a tag, or match any.
func tagged(lists []string, tag string) bool {
	for one := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		if one = strings.TrimSpace(one); one == "*" || one == tag {
			return true
		}
	}
	return false
}

// Unchanged reports whether a file is the one that a client has seen, by its entity tag or time.
func Unchanged(since string, file *files.Entry) bool {
	if strings.HasPrefix(since, `"`) {
		return since == EntityTag(file)
	}
	at, err := http.ParseTime(since)
	return err == nil && file.Time.Truncate(time.Second).Equal(at)
}
