package cmd

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/claude-hub/claude-hub/runner"
	"github.com/claude-hub/claude-hub/runner/image"
)

// imageFlags are those of every image command.
type imageFlags struct {
	config configFlags
	output string
}

func (f *imageFlags) add(c *cobra.Command) *cobra.Command {
	f.config.add(c)
	outputFlag(c, &f.output)
	return c
}

// open opens this host's Runner's store, which a running Runner may be using at the same time.
func (f *imageFlags) open(platform string) (*image.Store, error) {
	cfg, err := f.config.load()
	if err != nil {
		return nil, err
	}
	o, err := cfg.Runner.ImageOptions()
	if err != nil {
		return nil, err
	}
	if platform != "" {
		o.Platform = platform
	}
	return image.Open(runner.ImageFolder(cfg.Data), o)
}

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Images on this host's Runner",
		Long: `Images that Environments start from, in this host's Runner store. Needs no Hub, and can be used while the Runner runs.

Credentials for registries come from the Docker config of the user (docker login); mirrors and plain-HTTP registries
from runner.images in the config file.`,
		Example: "  claude-hub image pull node:22-bookworm\n  claude-hub image ls",
	}
	c.AddCommand(imagePull(), imageList(), imageImport(), imageDebootstrap(), imageRemove())
	return c
}

func imagePull() *cobra.Command {
	var f imageFlags
	var platform string
	c := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Fetch an image from its registry and unpack it",
		Long: `Fetch an image from its registry and unpack it. Layers that are here already are not fetched again, and a pull
that was interrupted goes on where it stopped.`,
		Example: `  claude-hub image pull buildpack-deps:bookworm
  claude-hub image pull ghcr.io/owner/image@sha256:…`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := f.open(platform)
			if err != nil {
				return err
			}
			show := showImageProgress(c.ErrOrStderr())
			img, err := s.Pull(c.Context(), args[0], show.step)
			show.end()
			if err != nil {
				return imageError(err)
			}
			return f.print(c, img)
		},
	}
	c.Flags().StringVar(&platform, "platform", "", "take this platform of an image with several, such as linux/arm64; default this host's")
	return f.add(c)
}

func imageList() *cobra.Command {
	var f imageFlags
	return f.add(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images on this host",
		Example: "  claude-hub image ls\n  claude-hub image ls -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := f.open("")
			if err != nil {
				return err
			}
			all, err := s.List()
			if err != nil {
				return err
			}
			if f.output == "json" {
				if all == nil {
					all = []image.Image{}
				}
				return printJSON(c, all)
			}
			var rows [][]string
			for _, img := range all {
				names := img.Names
				if len(names) == 0 {
					names = []string{"<no name>"}
				}
				for _, n := range names {
					rows = append(rows, []string{n, shortDigest(img.Digest), img.Config.OS + "/" + img.Config.Architecture,
						strconv.Itoa(len(img.Layers)), imageSize(img.Size), img.Created.Local().Format("2006-01-02 15:04")})
				}
			}
			return printTable(c, "NAME|DIGEST|PLATFORM|LAYERS|SIZE|SINCE", rows)
		},
	})
}

func imageImport() *cobra.Command {
	var f imageFlags
	c := &cobra.Command{
		Use:   "import PATH [NAME]",
		Short: "Import an image from a file or folder",
		Long: `Import an image from an OCI layout (folder or tar) or from what docker save or podman save wrote, also compressed.
Without NAME it gets the name in the archive; of an archive with several images, NAME picks one. No registry is asked
for an imported name until it is removed.`,
		Example: `  docker save my-image:v1 | gzip > image.tar.gz && claude-hub image import image.tar.gz
  claude-hub image import ./oci-layout my-image:v2`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := f.open("")
			if err != nil {
				return err
			}
			show := showImageProgress(c.ErrOrStderr())
			img, err := s.Import(c.Context(), args[0], strings.Join(args[1:], ""), show.step)
			show.end()
			if err != nil {
				return imageError(err)
			}
			return f.print(c, img)
		},
	}
	return f.add(c)
}

func imageDebootstrap() *cobra.Command {
	var f imageFlags
	var o image.DebootstrapOptions
	c := &cobra.Command{
		Use:   "debootstrap",
		Short: "Make an image of Debian without an image registry",
		Long: `Make an image of Debian from Debian's package archive, without an image registry. Takes one to three minutes; what
debootstrap says goes to standard error. Without --include it has, beside Debian's minimal system:
` + strings.Join(image.DebootstrapPackages, ", ") + ".",
		Example: `  claude-hub image debootstrap
  claude-hub image debootstrap --suite trixie --name debian-dev --include git,build-essential`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := f.open("")
			if err != nil {
				return err
			}
			img, err := s.Debootstrap(c.Context(), o, c.ErrOrStderr())
			if err != nil {
				return imageError(err)
			}
			return f.print(c, img)
		},
	}
	c.Flags().StringVar(&o.Suite, "suite", "bookworm", "Debian release")
	c.Flags().StringVar(&o.Name, "name", "", "the image's name; default debian- and the release")
	c.Flags().StringSliceVar(&o.Include, "include", nil, "packages instead of those listed above")
	c.Flags().StringVar(&o.Mirror, "mirror", "", "package archive; default debootstrap's own")
	c.Flags().StringVar(&o.Cache, "cache", "", "folder that keeps the packages for the next time")
	return f.add(c)
}

func imageRemove() *cobra.Command {
	var f imageFlags
	c := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove images",
		Long: `Remove images by name, digest, or the first 12 digits of the digest. With the last name of an image go those of its
layers that no other image has. An image that a build or a Sandbox needs is not removed.`,
		Example: "  claude-hub image rm debian:bookworm",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := f.open("")
			if err != nil {
				return err
			}
			mounted, err := image.Mounted()
			if err != nil {
				return err
			}
			removed := []string{}
			for _, ref := range args {
				if err := s.Remove(c.Context(), ref, mounted); err != nil {
					return imageError(err)
				}
				if removed = append(removed, ref); f.output == "text" {
					fmt.Fprintln(c.OutOrStdout(), "removed "+ref)
				}
			}
			if f.output == "json" {
				return printJSON(c, map[string]any{"removed": removed})
			}
			return nil
		},
	}
	return f.add(c)
}

func (f *imageFlags) print(c *cobra.Command, img image.Image) error {
	if f.output == "json" {
		return printJSON(c, img)
	}
	for _, n := range img.Notes {
		fmt.Fprintln(c.ErrOrStderr(), "note: "+n)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n%s, %d layers, %s\n", strings.Join(img.Names, " "), img.Digest, len(img.Layers), imageSize(img.Size))
	return err
}

// imageError makes a reference that can't be read a usage error; what else went wrong stays what it is.
func imageError(err error) error {
	if image.CodeOf(err) == image.BadReference {
		return usageError{err}
	}
	return err
}

func shortDigest(d string) string {
	d = strings.TrimPrefix(d, "sha256:")
	return d[:min(12, len(d))]
}

func imageSize(n int64) string {
	if n < 10e6 {
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.0f MB", float64(n)/1e6)
}

// imageProgress shows an image's progress: one line that changes on a terminal, and lines of 10 % steps elsewhere.
type imageProgress struct {
	w        io.Writer
	terminal bool
	phase    string
	tenth    int
}

func showImageProgress(w io.Writer) *imageProgress {
	f, ok := w.(*os.File)
	return &imageProgress{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

var phaseNames = map[string]string{
	image.PhaseResolve: "resolving", image.PhaseDownload: "downloading", image.PhaseUnpack: "unpacking", image.PhaseDone: "done",
}

func (p *imageProgress) step(now image.Progress) {
	text := phaseNames[now.Phase] + ": " + now.String()
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		return
	}
	tenth := 0
	if now.TotalBytes > 0 {
		tenth = int(10 * now.Bytes / now.TotalBytes)
	}
	if now.Phase == p.phase && tenth <= p.tenth {
		return
	}
	p.phase, p.tenth = now.Phase, tenth
	fmt.Fprintln(p.w, text)
}

func (p *imageProgress) end() {
	if p.terminal {
		fmt.Fprintln(p.w)
	}
}
