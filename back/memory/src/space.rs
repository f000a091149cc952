use tombolo_core::{Error, Result};

/// Counts the pages in use against a limit.
#[derive(Debug)]
pub(crate) struct Space {
    limit_pages: u64,
    used_pages: u64,
}

impl Space {
    pub(crate) fn new(limit_pages: u64) -> Self {
        Self { limit_pages, used_pages: 0 }
    }

    /// Takes one page.
    pub(crate) fn take(&mut self) -> Result<()> {
        if self.used_pages >= self.limit_pages {
            return Err(Error::NoSpace);
        }
        self.used_pages += 1;
        Ok(())
    }

    /// Gives pages back.
    pub(crate) fn give_back(&mut self, pages: u64) {
        self.used_pages = self.used_pages.saturating_sub(pages);
    }

    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit_pages
    }

    pub(crate) fn free_pages(&self) -> u64 {
        self.limit_pages - self.used_pages
    }
}
