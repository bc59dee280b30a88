// SPDX-License-Identifier: Apache-2.0

// Package mcp is the MCP server of boxd: its tools, the sessions of a client, what they have answered.
package mcp
