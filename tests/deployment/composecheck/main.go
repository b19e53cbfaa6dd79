// Loads the compose files that are named as Docker Compose does (schema, interpolation, merging,
// consistency), and prints the project as JSON; what is wrong is one line, and exit code 1.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func load(paths []string) ([]byte, error) {
	options, err := cli.NewProjectOptions(paths,
		cli.WithOsEnv, cli.WithEnvFiles(), cli.WithDotEnv)
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}

func main() {
	loaded, err := load(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(loaded))
}
