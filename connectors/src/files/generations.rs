//! Stores that a pipeline makes from history, in generations.
//!
//! `<root>/<pipeline>/<generation>/<stage>/…`; the link `current` in the pipeline's folder names the generation that is
//! live. A rebuild writes a generation of its own beside it and goes live by replacing the link in one step, so whoever
//! reads through `current`, another program included, sees the old store or the new one and never a mixture. The one
//! before stays until somebody discards it.
//!
//! The pipeline and not the sink has generations: what its stages keep in between, such as open windows, belongs to the
//! store that was made with it. Rejected: a file with the name in it, which other programs could not follow.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ulid::Ulid;

use super::{FileError, blocking, create_private_folder, names, replace_file, sync_folder};

const CURRENT: &str = "current";
const NEXT: &str = "current.tmp";

/// The generations of one pipeline. Nothing is touched before it is asked for.
#[derive(Debug, Clone)]
pub struct Generations {
    folder: PathBuf,
}

/// One generation; later ones have greater names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation {
    name: String,
    folder: PathBuf,
}

impl Generation {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a stage keeps what it makes; created if it is missing.
    pub async fn stage_folder(&self, stage: &str) -> Result<PathBuf, FileError> {
        let folder = self.folder.join(names::to_file_name(stage)?);
        let created = folder.clone();
        blocking(move || create_private_folder(&created)).await?;
        Ok(folder)
    }

    /// Keeps a file beside the stages' folders, in place of an earlier one; returns once it is on disk. `folder` begins
    /// with a dot, as no stage's does.
    pub async fn keep(
        &self,
        folder: &'static str,
        file: &'static str,
        content: Vec<u8>,
    ) -> Result<(), FileError> {
        debug_assert!(folder.starts_with('.'));
        let folder = self.folder.join(folder);
        blocking(move || {
            create_private_folder(&folder)?;
            replace_file(&folder, &folder.join(file), &content)
        })
        .await
    }
}

impl Generations {
    pub fn of(root: &Path, pipeline: &str) -> Result<Self, FileError> {
        Ok(Self { folder: root.join(names::to_file_name(pipeline)?) })
    }

    /// The one that is live; none if the pipeline has never run.
    pub async fn current(&self) -> Result<Option<Generation>, FileError> {
        let this = self.clone();
        blocking(move || this.read_current()).await
    }

    /// The one that is live, which is a new and empty one at first.
    pub async fn current_or_first(&self) -> Result<Generation, FileError> {
        let this = self.clone();
        blocking(move || {
            if let Some(current) = this.read_current()? {
                return Ok(current);
            }
            let first = this.create()?;
            this.point_to(&first)?;
            Ok(first)
        })
        .await
    }

    /// A new and empty one, which nobody reads yet.
    pub async fn begin(&self) -> Result<Generation, FileError> {
        let this = self.clone();
        blocking(move || this.create()).await
    }

    /// Finds one by its name.
    pub async fn find(&self, name: &str) -> Result<Option<Generation>, FileError> {
        Ok(self.list().await?.into_iter().find(|generation| generation.name == name))
    }

    /// All there are, oldest first.
    pub async fn list(&self) -> Result<Vec<Generation>, FileError> {
        let this = self.clone();
        blocking(move || this.read_all()).await
    }

    /// Makes a generation the live one, in one step. Returns the one that was live before.
    pub async fn make_current(&self, next: &Generation) -> Result<Option<Generation>, FileError> {
        let (this, next) = (self.clone(), next.clone());
        blocking(move || {
            let before = this.read_current()?;
            this.point_to(&next)?;
            Ok(before)
        })
        .await
    }

    /// Removes a generation for good; refused for the live one.
    pub async fn discard(&self, generation: &Generation) -> Result<(), FileError> {
        let (this, generation) = (self.clone(), generation.clone());
        blocking(move || {
            if this.read_current()?.is_some_and(|current| current == generation) {
                let (name, reason) = (generation.name, "it is the live generation");
                return Err(FileError::Name { name, reason });
            }
            std::fs::remove_dir_all(&generation.folder)
                .map_err(FileError::doing("remove", &generation.folder))?;
            sync_folder(&this.folder)
        })
        .await
    }

    fn create(&self) -> Result<Generation, FileError> {
        let generation = self.named(Ulid::generate().to_string());
        create_private_folder(&generation.folder)?;
        sync_folder(&self.folder)?;
        Ok(generation)
    }

    fn named(&self, name: String) -> Generation {
        Generation { folder: self.folder.join(&name), name }
    }

    fn read_current(&self) -> Result<Option<Generation>, FileError> {
        let link = self.folder.join(CURRENT);
        let target = match std::fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::doing("read the link", &link)(error)),
        };
        let name = target.to_str().filter(|name| is_generation(name) && self.folder.join(name).is_dir());
        match name {
            Some(name) => Ok(Some(self.named(name.to_owned()))),
            None => Err(FileError::Damaged {
                path: link,
                reason: format!("it points to {}, which is no generation", target.display()),
                advice: "point it to one of the folders beside it, or remove it to begin anew",
            }),
        }
    }

    fn read_all(&self) -> Result<Vec<Generation>, FileError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(FileError::doing("list", &self.folder)(error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(FileError::doing("list", &self.folder))?;
            if let Some(name) = entry.file_name().to_str().filter(|name| is_generation(name)) {
                all.push(self.named(name.to_owned()));
            }
        }
        all.sort();
        Ok(all)
    }

    fn point_to(&self, generation: &Generation) -> Result<(), FileError> {
        let (link, next) = (self.folder.join(CURRENT), self.folder.join(NEXT));
        // left behind by a process that died here
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(FileError::doing("remove", &next)(error));
            }
            _ => {}
        }
        symlink(&generation.name, &next).map_err(FileError::doing("create the link", &next))?;
        std::fs::rename(&next, &link).map_err(FileError::doing("replace the link", &link))?;
        sync_folder(&self.folder)
    }
}

fn is_generation(name: &str) -> bool {
    Ulid::from_string(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_live_one_is_replaced_in_one_step_and_the_one_before_stays() {
        let root = tempfile::tempdir().unwrap();
        let generations = Generations::of(root.path(), "search").unwrap();
        assert_eq!(generations.current().await.unwrap(), None);
        assert!(generations.list().await.unwrap().is_empty());
        let first = generations.current_or_first().await.unwrap();
        assert_eq!(generations.current_or_first().await.unwrap(), first);
        let index = first.stage_folder("search-index").await.unwrap();
        std::fs::write(index.join("file"), "old").unwrap();

        let shadow = generations.begin().await.unwrap();
        assert_eq!(generations.current().await.unwrap().as_ref(), Some(&first), "nobody reads it yet");
        let index = shadow.stage_folder("search-index").await.unwrap();
        std::fs::write(index.join("file"), "new").unwrap();
        symlink("left-behind", root.path().join("search/current.tmp")).unwrap();
        assert_eq!(generations.make_current(&shadow).await.unwrap().as_ref(), Some(&first));
        let through_link = root.path().join("search/current/search-index/file");
        assert_eq!(std::fs::read_to_string(&through_link).unwrap(), "new");

        assert_eq!(generations.make_current(&first).await.unwrap(), Some(shadow.clone()), "rolled back");
        assert_eq!(std::fs::read_to_string(&through_link).unwrap(), "old");
        assert_eq!(generations.find(shadow.name()).await.unwrap(), Some(shadow));
    }

    #[tokio::test]
    async fn the_live_one_cannot_be_discarded() {
        let root = tempfile::tempdir().unwrap();
        let generations = Generations::of(root.path(), "search").unwrap();
        let first = generations.current_or_first().await.unwrap();
        let shadow = generations.begin().await.unwrap();
        let refused = generations.discard(&first).await.unwrap_err().to_string();
        assert!(refused.contains("it is the live generation"), "{refused}");
        generations.discard(&shadow).await.unwrap();
        assert_eq!(generations.list().await.unwrap(), [first]);
    }

    #[tokio::test]
    async fn a_link_to_nowhere_is_said_and_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let generations = Generations::of(root.path(), "search").unwrap();
        std::fs::create_dir(root.path().join("search")).unwrap();
        for target in ["/etc", "01ARZ3NDEKTSV4RRFFQ69G5FAV"] {
            let _ = std::fs::remove_file(root.path().join("search/current"));
            symlink(target, root.path().join("search/current")).unwrap();
            let error = generations.current_or_first().await.unwrap_err().to_string();
            assert!(error.contains(target) && error.contains("remove it to begin anew"), "{error}");
        }
    }
}
