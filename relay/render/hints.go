// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/boxd-dev/boxd/relay/client"
)

// ConnectHint suggests what to do if boxd cannot be reached, "" if unknown.
func ConnectHint(e *client.ConnectError) string {
	_, file := errors.AsType[*fs.PathError](e.Err) // a certificate file, not the socket
	switch {
	case file:
	case strings.HasPrefix(e.Socket, "https://") && errors.Is(e, syscall.ECONNREFUSED):
		return "does boxd (daemon.https) or a fleet gateway (boxfleet serve) listen there?"
	case errors.Is(e, fs.ErrPermission):
		return deniedHint(denySocket(e.Socket))
	case errors.Is(e, fs.ErrNotExist), errors.Is(e, syscall.ECONNREFUSED):
		return "is boxd running? 'systemctl start boxd.socket' lets it start, 'systemctl status boxd.socket boxd.service' tells why it does not; " +
			"--socket selects one other than " + e.Socket
	}
	return ""
}

// deniedSocket is a socket that this user cannot open.
type deniedSocket struct {
	socket string
	user   string
	group  string // "": only root may open it
	member bool   // the user is a member, but only from the next login on
}

func denySocket(socket string) deniedSocket {
	c := deniedSocket{socket: socket, user: "YOU", group: "boxd"}
	var st syscall.Stat_t
	if syscall.Stat(socket, &st) == nil {
		if g, err := user.LookupGroupId(strconv.FormatUint(uint64(st.Gid), 10)); err == nil {
			c.group = g.Name
		}
		if st.Gid == 0 || st.Mode&0o060 != 0o060 {
			c.group = ""
		}
	}
	u, err := user.Current()
	if err != nil {
		return c
	}
	c.user = u.Username
	if g, err := user.LookupGroup(c.group); err == nil {
		ids, err := u.GroupIds()
		now, nerr := os.Getgroups()
		gid, _ := strconv.Atoi(g.Gid) // always a number on Unix
		c.member = err == nil && nerr == nil && slices.Contains(ids, g.Gid) && gid != os.Getegid() && !slices.Contains(now, gid)
	}
	return c
}

func deniedHint(c deniedSocket) string {
	switch {
	case c.group == "":
		return fmt.Sprintf("only root can use %s: use sudo, or set a group in box.toml (daemon.socket_group)", c.socket)
	case c.member:
		return fmt.Sprintf("you are a member of group %s, but were not when you logged in: log in again, or try 'newgrp %s'", c.group, c.group)
	}
	return fmt.Sprintf("members of the socket's group may use boxd: ask for 'usermod -aG %s %s' and log in again", c.group, c.user)
}
