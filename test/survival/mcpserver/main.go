// SPDX-License-Identifier: Apache-2.0

// Command mcpserver is an MCP server on standard input and output, made with the protocol's own library, as agents run it in boxes
// for long.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// question is the input of the tool.
type question struct {
	Number int `json:"number" jsonschema:"any number"`
}

// answer is its output. Calls counts those of this process.
type answer struct {
	Square int `json:"square"`
	Calls  int `json:"calls"`
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "square", Version: "1"}, nil)
	calls := 0
	mcp.AddTool(server, &mcp.Tool{Name: "square", Description: "squares a number"},
		func(_ context.Context, _ *mcp.CallToolRequest, q question) (*mcp.CallToolResult, answer, error) {
			calls++
			return nil, answer{Square: q.Number * q.Number, Calls: calls}, nil
		})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
